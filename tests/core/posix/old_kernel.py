"""Runs a program as on a kernel that lacks some system calls: `old_kernel.py openat2,... PROGRAM ARGS`.

A seccomp filter answers ENOSYS to them, here and in all that the program starts; for `openat2=kill`
it kills whoever asks, and for `openat2=eperm` it answers as filters of some engines do.
"""

import ctypes
import errno
import os
import struct
import sys

NUMBERS = {  # of any machine
    "pidfd_open": 434,
    "close_range": 436,
    "openat2": 437,
    "faccessat2": 439,
    "fchmodat2": 452,
}
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2


def filter_for(names: list[str]) -> bytes:
    """The program that the kernel runs for each system call: four fields an instruction."""
    rows = [(LOAD, 0, 0, 0)]
    for each in names:
        name, _, how = each.partition("=")
        answers = {"": ERRNO | errno.ENOSYS, "eperm": ERRNO | errno.EPERM, "kill": KILL}
        answer = answers[how]
        rows += [(JUMP_IF_EQUAL, 0, 1, NUMBERS[name]), (RETURN, 0, 0, answer)]
    rows += [(RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def main(names: str, *argv: str) -> None:
    code = filter_for(names.split(","))
    held = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HL", len(code) // 8, ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the filter was refused")
    os.environ.pop("LC_CTYPE", None)  # Python's own coercion of the C locale
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
