"""The provider: what it says of itself, and how sandboxes come and go (PR, RS-9, LC)."""

import subprocess
import sys
import textwrap

import attrs
import pytest

from pinfold.errors import Lost, SpecInvalid
from pinfold.provider import Context, ExecRequest, InstanceRef, InstanceStatus, Owner
from pinfold.resolve import resolve
from pinfold.spec import PinnedSpec
from pinfold_bashkit import BashkitProvider, provider
from tests.providers.bashkit.support import OWNER, make, resolved, sh

pytestmark = pytest.mark.anyio


def test_the_capabilities_are_those_of_the_seed():
    """RS-7, TR-2: the six facts of the environment view's example."""
    spec = resolved()
    assert attrs.asdict(provider.descriptor.capabilities(spec)) == {
        "native_processes": False,
        "network_enforced": True,
        "packages": False,
        "portable_checkpoint": True,
        "ports": False,
        "pty": False,
    }
    assert spec.target is not None
    assert (spec.target.kind, spec.target.provider) == ("vfs", "bashkit")
    assert (spec.containment.level, spec.containment.network.mode) == ("isolated", "deny")
    assert spec.durability == "checkpointed"


async def test_an_instance_has_the_features_it_was_promised(box):
    """PR-7."""
    promised = provider.descriptor.features(resolved())
    assert box.features.missing(promised) == ()
    assert box.features.tree_kill is None
    assert box.details.lacks


@pytest.mark.parametrize(
    ("script", "output"),
    [
        pytest.param("seq 1 200000 2>/dev/null | wc -l", "100000", id="seq"),
        pytest.param("yes 2>/dev/null | wc -l", "10000", id="yes"),
        pytest.param("head -c 2000000 /dev/zero | wc -c", "1048576", id="zero"),
        pytest.param("head -c 100000 /dev/urandom | wc -c", "8192", id="urandom"),
        pytest.param("echo x > f; chmod 000 f; cat f; stat -c %a f", "x\n0", id="modes"),
        pytest.param("mkfifo p; [ -p p ] && echo pipe", "pipe", id="special files"),
        pytest.param("ln -s a b; readlink b", "a", id="links"),
    ],
)
async def test_what_it_says_of_itself_is_so(box, script, output):
    """TR-1: the caps that are told are the caps there are, the features those that there are."""
    assert (await sh(box, script)).stdout_text == output + "\n"


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"containment": {"level": "native"}}, "/containment/level"),
        ({"containment": {"level": "none"}}, "/containment/level"),
        ({"containment": {"network": {"mode": "allow"}}}, "/containment/network/mode"),
        (
            {"containment": {"network": {"mode": "allowlist", "allowed_hosts": ["*.a.example"]}}},
            "/containment/network/allowed_hosts",
        ),
        (
            {"containment": {"filesystem": {"writable_roots": ["/data"]}}},
            "/containment/filesystem/writable_roots",
        ),
        ({"containment": {"escalation": "approval"}}, "/containment/escalation"),
        ({"durability": "provider_snapshot"}, "/durability"),
        ({"bootstrap": {"commands": ["true"]}}, "/bootstrap/commands"),
        ({"target": {"connection_id": "c"}}, "/target/connection_id"),
        ({"target": {"options": {"max_loop_iteration": 1}}}, "/target/options/max_loop_iteration"),
        (
            {"target": {"options": {"max_loop_iterations": 0}}},
            "/target/options/max_loop_iterations",
        ),
        (
            {"target": {"options": {"max_loop_iterations": 10**10}}},
            "/target/options/max_loop_iterations",
        ),
        ({"target": {"options": {"private_hosts": "yes"}}}, "/target/options/private_hosts"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_it_cannot_enforce_is_refused(spec, pointer):
    """RS-4, RS-9: with a pointer to the one thing that is wrong."""
    with pytest.raises(SpecInvalid) as caught:
        resolved(**spec)
    assert [fault.pointer for fault in caught.value.faults] == [pointer]


def test_a_resolved_spec_resolves_to_itself():
    """RS-2: options are complete."""
    spec = resolved()
    assert spec.target is not None
    assert set(spec.target.options) == {"max_loop_iterations", "private_hosts"}
    assert resolve(spec) == spec


async def test_the_probe_is_real(monkeypatch):
    """PR-4: it runs something, and says what to do when that goes wrong."""
    found = await BashkitProvider().probe()
    assert found.available
    assert found.details["version"]
    monkeypatch.setitem(sys.modules, "bashkit", None)
    found = await BashkitProvider().probe()
    assert not found.available
    assert "bashkit" in found.reason
    assert "pip install" in found.hint


async def test_sandboxes_are_found_by_their_labels_and_destroyed_once():
    """LC-9: only those of the owner asked for; destroy is idempotent."""
    own = BashkitProvider()
    spec = PinnedSpec(spec=resolved(own))

    async def create(store, sandbox):
        return await own.create(spec, Context(owner=Owner(store=store, sandbox=sandbox)))

    first, second, other = [
        await create(*labels) for labels in (("s", "1"), ("s", "2"), ("t", "1"))
    ]
    assert {ref.id for ref in await own.list(Owner(store="s"))} == {first.ref.id, second.ref.id}
    assert await own.list(Owner(store="s", sandbox="2")) == [second.ref]
    assert await second.status() is InstanceStatus.RUNNING
    await own.destroy(second.ref)
    await own.destroy(second.ref)
    await own.destroy(InstanceRef(provider="bashkit", id="never-was"))
    assert await second.status() is InstanceStatus.ABSENT
    assert await own.list(Owner(store="s")) == [first.ref]
    with pytest.raises(Lost):
        await sh(second, "true")
    assert (await sh(first, "echo hi")).stdout == b"hi\n"
    await other.destroy()
    await other.detach()
    assert await other.status() is InstanceStatus.ABSENT


async def test_a_ref_is_registered_before_the_sandbox_is_there():
    """PR: a create that fails then leaves nothing behind."""
    own, seen = BashkitProvider(), []

    async def register(ref):
        seen.append((ref, await own.list(OWNER)))
        if len(seen) > 1:
            raise RuntimeError("no")

    ctx = Context(owner=OWNER, register=register)
    instance = await own.create(PinnedSpec(spec=resolved(own)), ctx)
    assert seen == [(instance.ref, [])]
    with pytest.raises(RuntimeError, match="no"):
        await own.create(PinnedSpec(spec=resolved(own)), ctx)
    assert await own.list(OWNER) == [instance.ref]


async def test_sandboxes_see_nothing_of_each_other():
    """SP-5: isolated; also what all share, bashkit's own commands, can't be written."""
    one, two = await make(), await make()
    await sh(one, "echo x > f; echo x > /tmp/f; echo x > /home/sandbox/f; export SECRET=1")
    for script in (
        "echo > /etc/passwd",
        "rm /bin/ls",
        "mkdir /usr/x",
        "ln -s x /bin/y",
        "chmod 0 /bin/cat",
        "mv /etc /tmp/etc",
        "touch /proc/x",
    ):
        assert (await sh(one, script)).exit_code != 0, script
    result = await sh(
        two, "ls . /tmp /home/sandbox; echo $SECRET; history; ls /bin/ls; wc -l /etc/passwd"
    )
    assert "f" not in result.stdout_text.split()
    assert "/bin/ls" in result.stdout_text.split()
    assert (await sh(two, "cat /etc/passwd | md5sum; ls /bin /usr/bin | md5sum")).stdout == (
        await sh(await make(), "cat /etc/passwd | md5sum; ls /bin /usr/bin | md5sum")
    ).stdout


@pytest.mark.parametrize(
    "script",
    [
        "ls /root /var /run /sys /home",
        "cat /proc/1/environ /proc/self/environ /etc/hostname /proc/version",
        "ps aux; id; hostname; uname -a; df; env",
    ],
)
async def test_nothing_of_this_machine_is_visible(box, script, monkeypatch):
    """SP-5, EX-12."""
    import platform
    import socket

    monkeypatch.setenv("PINFOLD_CANARY", "canary-of-this-process")
    text = (await sh(box, script)).stdout_text
    for secret in ("canary-of-this-process", socket.gethostname(), platform.release(), __file__):
        assert secret not in text


def _fresh(script: str) -> str:
    """Run Python in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_describing_it_loads_no_bashkit():
    """PR-1."""
    loaded = _fresh(
        """
        import sys
        import pinfold_bashkit
        from pinfold.resolve import resolve
        resolve({"target": {"kind": "vfs", "provider": "bashkit"}})
        print([name for name in sys.modules if name.split(".")[0] == "bashkit"])
        """
    )
    assert loaded == "[]\n"


def test_two_hundred_sandboxes_fit_into_one_process():
    """No thread each, 2 MiB each, and no more descriptors than a process may have."""
    threads, megabytes, descriptors = map(
        float,
        _fresh(
            """
            import os
            import anyio
            from pinfold.provider import Context, ExecRequest, Owner
            from pinfold.resolve import resolve
            from pinfold.spec import PinnedSpec
            from pinfold_bashkit import provider

            def facts():
                status = dict(line.split(":", 1) for line in open("/proc/self/status"))
                return int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024

            async def main():
                spec = PinnedSpec(spec=resolve({"target": {"kind": "vfs", "provider": "bashkit"}}))
                async def make(name):
                    box = await provider.create(spec, Context(owner=Owner(store="s", sandbox=name)))
                    result = await box.exec(ExecRequest(shell="echo $((1 + 1)) > f; sleep 0; cat f"))
                    assert result.stdout == b"2\\n", result
                    return box
                first = await make("first")
                before = facts()
                boxes = [await make(str(number)) for number in range(200)]
                after = facts()
                print(after[0] - before[0], after[1] - before[1], len(os.listdir("/proc/self/fd")))

            anyio.run(main)
            """
        ).split(),
    )
    assert threads <= 2
    assert megabytes <= 200 * 2
    assert descriptors < 1000


async def test_a_sandbox_that_nobody_holds_is_gone():
    """LC: its memory is given back; there is nothing else to clean up."""
    own = BashkitProvider()
    instance = await make(own)
    await instance.exec(ExecRequest(shell="echo hi"))
    assert len(await own.list(OWNER)) == 1
    del instance
    import gc

    gc.collect()
    assert await own.list(OWNER) == []
