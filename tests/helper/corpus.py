"""Frames that are as they should be, for a fuzzer to start from."""

from pathlib import Path

from pinfold.posix._resident._wire import Call, Open, To, frame, text, texts


def path(name: str) -> bytes:
    return b"\0" + text(name)


def calls() -> dict[str, bytes]:
    """Every kind of frame, well formed."""
    arguments = {
        Call.ROOT: text("/nowhere"),
        Call.STAT: path("a/b"),
        Call.READ: path("a") + bytes(12),
        Call.WRITE: path("a") + b"\xff\xff\xff\xff" + b"data",
        Call.MKDIR: path("a") + b"\3",
        Call.REMOVE: path("a"),
        Call.RENAME: path("a") + path("b"),
        Call.SYMLINK: path("a") + text("b"),
        Call.CHMOD: path("a") + bytes(4),
        Call.PING: b"",
        Call.JOBS: b"\1",
    }
    found = {
        f"call-{call.name}": frame(To.CALL, 7, bytes((call,)) + rest)
        for call, rest in arguments.items()
    }
    exec_rest = bytes(25) + texts(["echo", "x"]) + texts(["A=b"])
    opens = {
        Open.EXEC: path("") + exec_rest,
        Open.LIST: path(""),
        Open.SCAN: path("") + text(".x") + bytes(32),
        Open.FETCH: path("") + b"\1",
        Open.DOWNLOAD: path("a") + bytes(16),
        Open.UPLOAD: path("a") + bytes(4),
        Open.REMOVE: path("a"),
        Open.RESTORE: path("") + text(".x"),
        Open.RECOVER: path("") + text(".x"),
    }
    for number, (operation, rest) in enumerate(opens.items()):
        head = bytes((operation,)) + (1 << 20).to_bytes(8, "little")
        found[f"open-{operation.name}"] = frame(To.OPEN, number, head + rest)
    others = {
        To.DATA: b"data",
        To.EOF: b"",
        To.CREDIT: b"\1" + (99).to_bytes(8, "little"),
        To.SIGNAL: b"\x0f",
        To.KILL: bytes(4),
        To.RESIZE: bytes(4),
        To.ACK: bytes(8),
        To.BYE: b"",
    }
    return found | {f"frame-{kind.name}": frame(kind, 0, rest) for kind, rest in others.items()}


def write(folder: Path) -> None:
    for name, raw in calls().items():
        (folder / name).write_bytes(raw)
    (folder / "all").write_bytes(b"".join(calls().values()))
