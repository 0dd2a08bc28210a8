"""Runs a program where a folder has a name that is longer than names are: `long_names.py FOLDER PROGRAM ARGS`.

A file system in user space may have it, which any user with `fusermount` can mount: a name of 1000
bytes. It is mounted in a mount namespace that ends with the program.
"""

import ctypes
import os
import struct
import sys

HEAD = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
LOOKUP, GETATTR, INIT, OPENDIR, READDIR, RELEASEDIR = 1, 3, 26, 27, 28, 29
FORGET = (2, 42)
NAME = b"n" * 1000


def attributes() -> bytes:
    """Of a directory, the only node there is."""
    times = bytes(24) + bytes(12)
    return (
        struct.pack("<QQQ", 1, 0, 0) + times + struct.pack("<IIIIIII", 0o40755, 2, 0, 0, 0, 512, 0)
    )


def answer(opcode: int, body: bytes) -> bytes | int:
    """What the kernel gets, or an errno."""
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0) + bytes(28)
    if opcode == GETATTR:
        return bytes(16) + attributes()
    if opcode == OPENDIR:
        return bytes(16)
    if opcode == RELEASEDIR:
        return b""
    if opcode == READDIR:
        offset = struct.unpack_from("<QQ", body)[1]
        entry = struct.pack("<QQII", 2, 1, len(NAME), 4) + NAME
        return b"" if offset else entry
    if opcode == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes()
    return 38


def serve(device: int) -> None:
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:
            return
        _, opcode, unique, *_ = HEAD.unpack_from(request)
        if opcode in FORGET:
            continue
        said = answer(opcode, request[HEAD.size :])
        error, data = (-said, b"") if isinstance(said, int) else (0, said)
        os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


def main(folder: str, *argv: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"none", os.fsencode(folder), b"fuse", 6, options):
        raise OSError(ctypes.get_errno(), "the mount was refused")
    if not os.fork():
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        serve(device)
        os._exit(0)
    os.close(device)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
