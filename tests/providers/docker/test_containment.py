"""Level isolated, proved from inside: what is in force, and what an attacker can't do (TR-1).

What a kernel refuses does not depend on the event loop here: one is enough.
"""

import shlex

import pytest

from pinfold.provider import ExecRequest
from pinfold_docker._instance import DockerInstance
from tests.providers.docker.support import DEBIAN, image, make, said, sh
from tests.providers.docker.support import box as make_box

pytestmark = pytest.mark.anyio

SCRATCH = "/scratch/deep"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
async def caged(provider, flavour):
    """A sandbox with a writable root, on each kind of image."""
    instance = await make(provider, image=flavour, roots=(SCRATCH,))
    yield instance
    await instance.destroy()


async def test_every_capability_is_gone_and_the_filter_is_on(caged):
    status = dict(
        line.split(":\t") for line in (await said(caged, "cat /proc/self/status")).splitlines()
    )
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"1000"}


async def mounts(caged: DockerInstance) -> dict[str, tuple[str, set[str]]]:
    found = {}
    for line in (await said(caged, "cat /proc/self/mounts")).splitlines():
        _, point, kind, options, *_ = line.split()
        found[point] = kind, set(options.split(","))
    return found


async def test_what_is_mounted_is_ours_and_nothing_of_the_host(caged):
    """A root that can't be written, memory where something can, no file and no socket of the host."""
    table = await mounts(caged)
    assert "ro" in table["/"][1]
    for point, options in (("/tmp", set()), ("/run/pinfold", {"mode=700"}), (SCRATCH, set())):
        kind, found = table[point]
        assert kind == "tmpfs"
        assert found >= {"rw", "nosuid", "nodev"} | options
        assert "noexec" not in found  # compilers and installers run what they write there
    memory = {"tmpfs", "proc", "sysfs", "cgroup", "cgroup2", "mqueue", "devpts", "overlay"}
    assert {point.replace("/usr/", "/") for point, (kind, _) in table.items() if kind not in memory} <= {
        "/workspace", "/sbin/docker-init", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
    }  # fmt: skip


async def test_nothing_else_can_be_written(caged):
    script = (
        "for d in / /bin /etc /home /root /usr /var /run /opt /sys /dev /proc /proc/sys; do "
        'if (: >"$d/x") 2>/dev/null; then echo "$d"; fi; done; :'
    )
    assert await said(caged, script) == ""


async def test_what_is_written_where_it_may_be_can_be_run(caged):
    folders = f"/tmp {SCRATCH} /run/pinfold /workspace"
    script = (
        f"for d in {folders}; do printf '#!/bin/sh\necho $0\n' >$d/x && chmod +x $d/x && $d/x; done"
    )
    assert (await said(caged, script)).split() == [f"{folder}/x" for folder in folders.split()]


async def test_devices_are_the_harmless_ones_and_the_kernels_secrets_are_masked(caged):
    script = (
        "cd /dev && find . -type b -o -type c; for p in /proc/kcore /proc/keys /proc/timer_list; do "
        "[ ! -e $p ] || head -c 1 $p | od; done; ls -A /sys/firmware"
    )
    names = set((await said(caged, script)).split()) - {"0000000"}
    assert names <= {
        "./null", "./zero", "./full", "./random", "./urandom", "./tty", "./console", "./ptmx",
        "./pts/ptmx", *(f"./pts/{number}" for number in range(9)),
    }  # fmt: skip


# Each must fail: what prints ESCAPED has escaped.
ATTEMPTS = {
    "mount a tmpfs": "mount -t tmpfs none /tmp",
    "mount proc anew": "mkdir -p /tmp/p && mount -t proc proc /tmp/p",
    "bind the root": "mkdir -p /tmp/r && mount --bind / /tmp/r",
    "remount the root": "mount -o remount,rw /",
    "unmount a mask": "umount /proc/keys || umount /proc/kcore",
    "a user namespace": "unshare -r true || unshare -U true",
    "a mount namespace": "unshare -m true",
    "a network namespace": "unshare -n true",
    "enter the first process": "nsenter -t 1 -m true",
    "change the root": "chroot / /bin/true",
    "a block device": "mknod /tmp/sda b 8 0",
    "a character device": "mknod /tmp/mem c 1 1",
    "the disk": "dd if=/dev/sda of=/tmp/x count=1 || dd if=/dev/vda of=/tmp/x count=1",
    "become root": "su root -c true </dev/null",
    "a setuid program": "cp $(command -v id) /tmp/s && chown 0 /tmp/s",
    "give a file away": ": >/tmp/g && chown 0:0 /tmp/g",
    "sysrq": "echo b >/proc/sysrq-trigger",
    "core pattern": "echo '|/tmp/x' >/proc/sys/kernel/core_pattern",
    "a sysctl": "echo 1 >/proc/sys/kernel/panic",
    "modprobe path": "echo /tmp/x >/proc/sys/kernel/modprobe",
    "release agent": "echo /tmp/x >/sys/fs/cgroup/memory/release_agent",
    "release agent anywhere": "for f in $(find /sys/fs/cgroup -name release_agent); do "
    "echo /tmp/x >$f && exit 0; done; exit 1",
    "a cgroup of its own": "mkdir /sys/fs/cgroup/memory/x || mkdir /sys/fs/cgroup/x",
    "raise a limit": "echo -1 >/sys/fs/cgroup/memory/memory.limit_in_bytes "
    "|| echo max >/sys/fs/cgroup/memory.max",
    "another root than its own": '[ "$(stat -L -c %d:%i /proc/1/root)" != "$(stat -c %d:%i /)" ]',
    "out by a link": "ln -s /proc/1/root /tmp/out && ls /tmp/out/var/lib/docker/",
    "kill the first process": "kill -9 1 && sleep 0.2 && [ ! -d /proc/1 ]",
    "host name": "hostname escaped && [ $(hostname) = escaped ]",
    "clock": "date -s @0; [ $(date +%s) -lt 1000000 ]",
    "an interface": "ip link add x type dummy || ip link set lo down",
    "kernel log": "dmesg -c",
    "load a module": ": >/tmp/x.ko; insmod /tmp/x.ko || modprobe dummy",
    "swap": "swapoff -a && swapon /tmp/x",
    "nice": "nice -n -5 sh -c '[ $(nice) = -5 ]'",
    "the engine": "wget -qO- -T 1 http://172.17.0.1:2375/_ping",
    "the engine's socket": "find / -name docker.sock 2>/dev/null | grep -q .",
    "the layers": "ls /var/lib/docker/overlay2",
    "processes of others": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'docke[r]d\\|sleep 95[5]'",
    "signals to others": "for p in $(seq 2 400); do kill -0 $p && [ ! -O /proc/$p ] && exit 0; done; exit 1",
}

# Numbers of x86-64 and of arm64; a refused call gives -1. Only perl can ask, so only on Debian.
CALLS = {
    "unshare(CLONE_NEWUSER)": (272, 97, "0x10000000"),
    "unshare(CLONE_NEWNS)": (272, 97, "0x00020000"),
    "mount": (165, 40, "0, 0, 0, 0, 0"),
    "pivot_root": (155, 41, "0, 0"),
    "keyctl": (250, 219, "0, -3, 1"),
    "add_key": (248, 217, "0, 0, 0, 0, 0"),
    "bpf": (321, 280, "0, 0, 0"),
    "perf_event_open": (298, 241, "0, 0, -1, -1, 0"),
    "kexec_load": (246, 104, "0, 0, 0, 0"),
    "init_module": (175, 105, "0, 0, 0"),
    "reboot": (169, 142, "0, 0, 0, 0"),
    "setns": (308, 268, "0, 0"),
    "open_by_handle_at": (304, 265, "0, 0, 0"),
    "userfaultfd": (323, 282, "0"),
    "swapon": (167, 224, "0, 0"),
    "setuid(0)": (105, 146, "0"),
    "socket(AF_PACKET)": (41, 198, "17, 3, 768"),
    "socket(AF_INET, SOCK_RAW)": (41, 198, "2, 3, 1"),
    "ptrace(ATTACH, 2)": (101, 117, "16, 2, 0, 0"),
}
ALLOWED = {"getpid": (39, 172, "0")}


def harness(attempts: dict[str, str]) -> str:
    lines = [
        f"(cd /tmp && timeout 10 sh -c {shlex.quote(script)}) >/dev/null 2>&1 </dev/null "
        f"&& printf '%s\\n' {shlex.quote(name)}"
        for name, script in attempts.items()
    ]
    return "\n".join([*lines, "rm -rf /tmp/*; :"])


@pytest.fixture(scope="module")
async def escapes(caged, box) -> list[str]:
    """The attempts that came through, all made in one command; and a control that must."""
    await sh(box, "sleep 955 >/dev/null 2>&1 & :")  # a process of another sandbox
    control = {"control": "id -u"}
    return (await said(caged, harness({**ATTEMPTS, **control}), timeout_seconds=100)).splitlines()


@pytest.fixture(scope="module")
async def calls(caged, flavour) -> list[str]:
    """The system calls that were not refused, likewise."""
    if flavour != DEBIAN:
        return ["getpid"]
    column = 0 if "x86_64" in await said(caged, "uname -m") else 1
    script = "".join(
        f'print "{name}\\n" unless fork() ? (wait(), $? == 0)[1] '
        f": exit(syscall({row[column]}, {row[2]}) == -1 ? 0 : 1);"
        for name, row in {**CALLS, **ALLOWED}.items()
    )
    result = await caged.exec(ExecRequest(argv=("perl", "-e", script)))
    assert result.exit_code == 0, result.stderr_text
    lines: list[str] = result.stdout_text.splitlines()
    return lines


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_an_attempt_to_break_out_fails(escapes, attempt):
    assert escapes[-1:] == ["control"]
    assert attempt not in escapes


@pytest.mark.parametrize("call", CALLS)
async def test_a_system_call_that_could_break_out_is_refused(calls, call):
    assert calls[-1:] == ["getpid"]
    assert call not in calls


async def test_the_sandbox_is_as_it_was_after_all_that(caged, escapes, calls):
    script = "id -u; hostname; stat -c '%u %g %a' /workspace; ls -A /tmp | grep -vc '^[.]pinfold'"
    uid, host, owner, left = (await sh(caged, script)).stdout_text.splitlines()
    assert (uid, owner, left) == ("1000", "1000 1000 755", "0")
    assert host != "escaped"


async def test_a_program_of_the_image_with_setuid_gives_nothing(client, provider):
    """No new privileges, whatever the image itself brought."""
    async with (
        image(client, DEBIAN, changes=("USER root", "ENTRYPOINT []")) as name,
        make_box(provider, image=name) as box,
    ):
        assert "/su" in await said(box, "find / -xdev -perm -4000 2>/dev/null; :")
        assert (await sh(box, "su root -c id </dev/null")).exit_code != 0
        assert await said(box, "id -u") == "1000\n"  # whatever USER says


async def test_the_user_is_the_one_asked_for_and_its_files_are_its_own(provider):
    async with make_box(provider, user=4321, roots=("/data",), read_only_root=False) as box:
        script = "id -u; id -g; touch /workspace/x /data/x /run/pinfold/x; stat -c %u /workspace/x"
        assert (await said(box, script)).split() == ["4321", "4321", "4321"]
        assert (await sh(box, ": >/etc/x")).exit_code != 0  # writable, but not by everybody
        assert "CapBnd:\t0000000000000000" in await said(box, "cat /proc/self/status")
