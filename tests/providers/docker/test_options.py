"""What an author may say of a container, and what not; no engine is asked (RS-5, PR-3)."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import SpecInvalid
from pinfold.spec import from_json, to_json
from pinfold_docker import DockerOptions, DockerProvider
from tests.providers.docker.support import resolved

BAD = {
    "no image": ({}, "/image", "required"),
    "empty image": ({"image": ""}, "/image", "not an image"),
    "image with a space": ({"image": "a b"}, "/image", "not an image"),
    "image that is an option": ({"image": "--privileged"}, "/image", "not an image"),
    "image with a path out": ({"image": "../x"}, "/image", "not an image"),
    "uid 0": ({"user": 0}, "/user", "root"),
    "root by name": ({"user": "root"}, "/user", "whole number"),
    "negative uid": ({"user": -1}, "/user", "out of range"),
    "boolean uid": ({"user": True}, "/user", "whole number"),
    "memory as text": ({"memory_bytes": "1g"}, "/memory_bytes", "whole number"),
    "too little memory": ({"memory_bytes": 1024}, "/memory_bytes", "out of range"),
    "no processor": ({"cpus": 0}, "/cpus", "out of range"),
    "no process": ({"pids": 0}, "/pids", "out of range"),
    "platform": ({"platform": "windows/amd64"}, "/platform", "linux/ARCH"),
    "helper": ({"helper": "maybe"}, "/helper", "auto, required, never"),
    "pull": ({"pull": "sometimes"}, "/pull", "missing, always, never"),
    "ulimit": ({"ulimits": [{"name": "x", "soft": 1, "hard": 1}]}, "/ulimits/0/name", "no such"),
    "ulimit order": ({"ulimits": [{"name": "cpu", "soft": 2, "hard": 1}]}, "/ulimits/0", "soft"),
    "own label": ({"labels": {"pinfold.store": "x"}}, "/labels/pinfold.store", "own"),
    "label": ({"labels": {"a": 1}}, "/labels/a", "string"),
    "port": ({"ports": [0]}, "/ports/0", "1 to 65535"),
    "port twice": ({"ports": [80, 80]}, "/ports/1", "twice"),
}

# What would weaken the container does not exist, under any of the names it has elsewhere.
WEAKENING = (
    "privileged cap_add capabilities network_mode host_network pid_mode ipc_mode userns_mode "
    "uts_mode mounts volumes binds devices security_opt seccomp apparmor sysctls entrypoint init "
    "cgroup_parent runtime extra_hosts dns group_add shm_size oom_kill_disable docker_socket"
).split()


@pytest.mark.parametrize(("options", "pointer", "words"), BAD.values(), ids=BAD)
def test_a_bad_option_is_a_fault_at_its_place(options, pointer, words):
    with pytest.raises(SpecInvalid) as caught:
        from_json({"image": "x", **options} if options else options, DockerOptions)
    (fault,) = caught.value.faults
    assert fault.pointer.startswith(pointer)
    assert words in str(fault)


@pytest.mark.parametrize("name", WEAKENING)
def test_no_option_weakens_a_container(name):
    with pytest.raises(SpecInvalid) as caught:
        resolved(options={"image": "x", name: True})
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.code) == (f"/target/options/{name}", "unknown_key")


@pytest.mark.parametrize(
    "image",
    [
        "a",
        "a:b",
        "a/b/c:1.2-x_y",
        "localhost:5000/a:b",
        "example.com/a/b@sha256:" + "0" * 64,
        "sha256:" + "a" * 64,
        "a" * 64,
    ],
)
def test_every_form_of_an_image_name_is_taken(image):
    assert DockerOptions(image=image).image == image


@given(
    st.builds(
        DockerOptions,
        image=st.sampled_from(["a", "a:b"]),
        memory_bytes=st.integers(2**24, 2**50),
        cpus=st.floats(0.01, 1024),
        pids=st.integers(16, 2**22),
        user=st.integers(1, 2**31 - 1),
        ports=st.lists(st.integers(1, 65535), unique=True).map(tuple),
        read_only_root=st.booleans(),
    )
)
def test_options_survive_their_json(options):
    assert from_json(to_json(options), DockerOptions) == options


def test_every_option_is_documented():
    text = DockerOptions.__doc__ or ""
    for field in attrs.fields(DockerOptions):
        assert f"\n        {field.name}: " in text, field.name


SPECS = {
    "ports under deny": ({"ports": [80]}, "/target/options/ports"),
    "a root over /tmp": ({"roots": ("/tmp",)}, "/containment/filesystem/writable_roots/0"),
    "a root over ours": ({"roots": ("/run/pinfold",)}, "/containment/filesystem/writable_roots/0"),
    "a root in ours": ({"roots": ("/run/pinfold/x",)}, "/containment/filesystem/writable_roots/0"),
    "a root over programs": ({"roots": ("/usr",)}, "/containment/filesystem/writable_roots/0"),
    "a root in /proc": ({"roots": ("/proc/x",)}, "/containment/filesystem/writable_roots/0"),
    "a root in itself": ({"roots": ("/workspace/x",)}, "/containment/filesystem/writable_roots/0"),
    "an allowlist": ({"network": "allowlist"}, "/containment/network"),
}


@pytest.mark.parametrize(("spec", "pointer"), SPECS.values(), ids=SPECS)
def test_what_a_container_cannot_do_is_a_fault_before_anything_is_made(spec, pointer):
    """RS-4, RS-9: refused, never weakened."""
    with pytest.raises(SpecInvalid) as caught:
        resolved(**spec)
    assert {fault.pointer for fault in caught.value.faults} >= {pointer} or pointer in str(
        caught.value
    )


def test_ports_need_a_network_and_deny_says_so_before_anything_runs():
    """RS-7."""
    descriptor = DockerProvider().descriptor
    assert not descriptor.capabilities(resolved()).ports
    assert descriptor.capabilities(resolved(network="allow")).ports
