"""The seccomp filter of level native, as a classic BPF program.

A deny-list, in the manner of container engines and Flatpak: namespaces and user ids already bound
what a guest can reach, and the filter takes away kernel surface that no ordinary program needs.
There is no kept binding to libseccomp that could be depended on, and the program is short.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import Final

__all__ = ["MACHINES", "program"]

_LD_W_ABS, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data
_X32_BIT: Final = 0x40000000

_CLONE_NEW_ANY: Final = 0x7E020000  # user, pid, net, ipc, uts, cgroup, mount
_CLONE_NEWTIME: Final = 0x00000080  # for unshare alone: in clone it is part of the signal number
_SOCKET_FAMILIES: Final = (
    1,
    2,
    10,
    16,
)  # unix, inet, inet6, netlink; vsock would pass by any netns
_TERMINAL_IOCTLS: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: input that nobody typed

#: audit architecture, and numbers by name where they differ: x86_64, aarch64.
MACHINES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED: Final = {
    # name: (x86_64, aarch64); None where the machine has none
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
_CLONE, _UNSHARE, _SOCKET, _IOCTL = (56, 220), (272, 97), (41, 198), (16, 29)
_CLONE3: Final = 435


def program(machine: str) -> bytes:
    """Return the filter for `machine` (x86_64 or aarch64) as an array of struct sock_filter.

    Another architecture's calls kill the process (its numbers mean other things); denied calls
    fail with EPERM, new kinds of socket with EAFNOSUPPORT. clone3 is ENOSYS, since its flags lie
    in memory that a filter can't read: the C library then uses clone.

    Raises:
        KeyError: there is no table for this machine.
    """
    column = list(MACHINES).index(machine) if machine in MACHINES else -1
    code = [
        *_unless(_JEQ, _ARCH, MACHINES[machine], _ret(_KILL_PROCESS)),
        _instruction(_LD_W_ABS, k=_NUMBER),
    ]
    if machine == "x86_64":  # x32 calls share the architecture and have a bit set
        code += [_instruction(_JGE, k=_X32_BIT, no=1), _ret(_fail(errno.ENOSYS))]
    code += _when(_CLONE3, [_ret(_fail(errno.ENOSYS))])
    code += _when(_CLONE[column], _if_flags(_CLONE_NEW_ANY))
    code += _when(_UNSHARE[column], _if_flags(_CLONE_NEW_ANY | _CLONE_NEWTIME))
    code += _when(_SOCKET[column], _only(_SOCKET_FAMILIES, errno.EAFNOSUPPORT, argument=0))
    code += _when(_IOCTL[column], _none_of(_TERMINAL_IOCTLS, argument=1))
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            code += _when(number, [_ret(_fail(errno.EPERM))])
    return b"".join([*code, _ret(_ALLOW)])


def _instruction(code: int, *, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, k)


def _ret(action: int) -> bytes:
    return _instruction(_RET, k=action)


def _fail(code: int) -> int:
    return _ERRNO | code


def _unless(test: int, offset: int, value: int, action: bytes) -> list[bytes]:
    return [_instruction(_LD_W_ABS, k=offset), _instruction(test, k=value, yes=1), action]


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Run `body`, which always returns, when the call in the accumulator is `number`."""
    return [_instruction(_JEQ, k=number, no=len(body)), *body]


def _if_flags(mask: int) -> list[bytes]:
    """Deny when the call's first argument has any of the bits of `mask`; else allow."""
    return [
        _instruction(_LD_W_ABS, k=_ARGS),
        _instruction(_JSET, k=mask, no=1),
        _ret(_fail(errno.EPERM)),
        _ret(_ALLOW),
    ]


def _only(values: Iterable[int], code: int, *, argument: int) -> list[bytes]:
    """Allow when the low half of an argument is one of `values`; else fail with `code`."""
    return [
        _instruction(_LD_W_ABS, k=_ARGS + 8 * argument),
        *(part for value in values for part in (_instruction(_JEQ, k=value, no=1), _ret(_ALLOW))),
        _ret(_fail(code)),
    ]


def _none_of(values: Iterable[int], *, argument: int) -> list[bytes]:
    """Deny when the low half of an argument is one of `values`; else allow."""
    return [
        _instruction(_LD_W_ABS, k=_ARGS + 8 * argument),
        *(
            part
            for value in values
            for part in (_instruction(_JEQ, k=value, no=1), _ret(_fail(errno.EPERM)))
        ),
        _ret(_ALLOW),
    ]
