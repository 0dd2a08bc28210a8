"""The boundary of level native: what bubblewrap is told to build, and whether it can here."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from pinfold.errors import Unavailable
from pinfold.spec import WORKSPACE, NetworkMode
from pinfold_host import _seccomp
from pinfold_host._landlock import can_scope_abstract_sockets

__all__ = [
    "GUEST_ID",
    "TMP",
    "Network",
    "bubblewrap_argv",
    "etc_files",
    "missing",
    "network_of",
    "slirp_argv",
]

#: Who commands are, inside.
GUEST_ID: Final = 1000

#: A private one, which lives as long as the sandbox.
TMP: Final = "/tmp"  # noqa: S108  a guest path
_SHM: Final = "/dev/shm"  # noqa: S108  a guest path

#: System folders that commands see, read-only; those that are links here are links there.
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
#: What they see of /etc, beyond the files that are made for them.
_ETC: Final = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "networks",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_MADE: Final = {
    "passwd": (
        "root:x:0:0:root:/:/bin/sh\n"
        f"sandbox:x:{GUEST_ID}:{GUEST_ID}:sandbox:{TMP}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/bin/false\n"
    ),
    "group": f"root:x:0:\nsandbox:x:{GUEST_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost pinfold\n::1 localhost\n",
    "hostname": "pinfold\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_SLIRP_RESOLVER: Final = "nameserver 10.0.2.3\n"


class Network:
    """How a network mode is had at level native: words for pins."""

    NONE: Final = "none"
    SHARED: Final = "landlock"  # the host's network; Landlock keeps abstract sockets out of reach
    SLIRP: Final = "slirp4netns"  # a network of its own, with a way out


def network_of(mode: NetworkMode) -> str:
    """Return how a mode is had here.

    Raises:
        Unavailable: mode allow, where nothing here keeps the host's abstract sockets apart.
    """
    if mode is NetworkMode.DENY:
        return Network.NONE
    if can_scope_abstract_sockets():
        return Network.SHARED
    if shutil.which("slirp4netns") and _may_open_tun():
        return Network.SLIRP
    raise Unavailable(
        "network allow at level native needs Landlock of ABI 6 (Linux 6.12), or slirp4netns "
        "and a /dev/net/tun that this user may open: else the host's abstract sockets would be "
        "within reach",
        hint="install slirp4netns, or use network deny",
    )


def _may_open_tun() -> bool:
    # Root lends the device to the uid that it runs slirp4netns as (the launcher).
    return os.access("/dev/net/tun", os.R_OK | os.W_OK)


def etc_files(network: str) -> Mapping[str, str]:
    """Return the files of /etc that are made for commands, by name."""
    if network == Network.SLIRP:
        return {**_MADE, "resolv.conf": _SLIRP_RESOLVER}
    return _MADE


def bubblewrap_argv(
    *, folder: str, roots: Sequence[tuple[str, PurePosixPath]], network: str
) -> list[str]:
    """Return the command line that builds and holds the boundary.

    Args:
        folder: the instance's folder, as bubblewrap sees it: `workspace`, `tmp`, `etc`.
        roots: name of a folder below `folder` and where it is to be seen, for writable roots.
        network: a word of `Network`.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("bubblewrap is not installed")
    argv = [program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--hostname", "pinfold"]
    if network != Network.SHARED:
        argv += ["--unshare-net"]
    argv += ["--uid", str(GUEST_ID), "--gid", str(GUEST_ID), "--clearenv", "--chdir", "/"]
    for place in _SYSTEM:
        if os.path.islink(place):
            argv += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            argv += ["--ro-bind", place, place]
    argv += ["--perms", "0755", "--dir", "/etc"]
    shared = [*_ETC, "resolv.conf"] if network == Network.SHARED else _ETC
    for name in shared:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in etc_files(network):
        argv += ["--ro-bind", f"{folder}/etc/{name}", f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", _SHM]
    argv += ["--bind", f"{folder}/workspace", str(WORKSPACE), "--bind", f"{folder}{TMP}", TMP]
    for name, root in sorted(roots, key=lambda root: len(root[1].parts)):
        argv += ["--bind", f"{folder}/{name}", str(root)]
    return [*argv, "--remount-ro", "/dev", "--remount-ro", "/"]


@functools.cache
def missing() -> str:
    """Return why level native can't be had on this machine, as far as a look tells, else ""."""
    if not sys.platform.startswith("linux"):
        return f"level native needs Linux; this is {platform.system() or sys.platform}"
    if platform.machine() not in _seccomp.MACHINES:
        return f"there is no seccomp filter for {platform.machine()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (bwrap is not on PATH)"
    status = Path("/proc/self/status")
    if not status.exists():
        return "/proc is not mounted"
    if "Seccomp:" not in status.read_text():
        return "this kernel has no seccomp"
    if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        return "this Python has no pidfd_open or memfd_create"
    return ""


def slirp_argv() -> list[str]:
    """Return the command line that gives the network namespace a way out.

    Words in braces stand for descriptors. The host's own loopback is not to be reached.
    """
    program = shutil.which("slirp4netns")
    if program is None:
        raise Unavailable("slirp4netns is not installed", hint="install it, or use network deny")
    return [
        *(program, "--configure", "--mtu=65520", "--disable-host-loopback", "--enable-ipv6"),
        *("--ready-fd", "{ready}", "--exit-fd", "{life}"),
        *("--userns-path", "{user}", "--netns-type=path", "{net}", "tap0"),
    ]
