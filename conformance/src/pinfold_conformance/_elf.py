"""The smallest native program: it proves that a guest runs operating-system processes.

It writes `native` and a newline, and exits 0. Built by hand, so that nothing has to be installed in
the guest, and no interpreter can stand in for the kernel.
"""

from __future__ import annotations

import struct

__all__ = ["PROGRAMS"]

_TEXT = b"native\n"
_BASE = 0x400000
_HEADERS = 64 + 56


def _elf(machine: int, code: bytes) -> bytes:
    entry = _BASE + _HEADERS
    size = _HEADERS + len(code)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code


def _x86_64() -> bytes:
    before = b"\xb8\x01\x00\x00\x00\xbf\x01\x00\x00\x00"  # mov eax, 1; mov edi, 1
    after = b"\xba" + struct.pack("<I", len(_TEXT))  # mov edx, length
    after += b"\x0f\x05\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"  # syscall; mov eax, 60; xor edi, edi
    lea = b"\x48\x8d\x35" + struct.pack("<i", len(after))  # lea rsi, [rip + after]
    return _elf(62, before + lea + after + _TEXT)


def _aarch64() -> bytes:
    words = (
        0xD2800020,  # mov x0, 1
        0x100000E1,  # adr x1, text (28 bytes on)
        0xD2800000 | len(_TEXT) << 5 | 2,  # mov x2, length
        0xD2800808,  # mov x8, 64
        0xD4000001,  # svc 0
        0xD2800000,  # mov x0, 0
        0xD2800BA8,  # mov x8, 93
        0xD4000001,  # svc 0
    )
    return _elf(183, struct.pack("<8I", *words) + _TEXT)


#: By machine, as `uname -m` names it.
PROGRAMS = {"x86_64": _x86_64(), "aarch64": _aarch64()}
