"""What a command is given: stdin, argv, environment, cwd (EX-3, EX-9, EX-11, EX-12)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import PurePosixPath

from pinfold.errors import (
    Effect,
    InvalidArgument,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    TooLarge,
)
from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, expect_raises, require
from pinfold_conformance._registry import Kind, Place, check

KIB = 1024
HOSTILE = (
    "a b",
    "  two  spaces  ",
    "'single'",
    '"double"',
    "$HOME",
    "${PATH}",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "&& touch pwned",
    "| cat",
    "> pwned",
    "*",
    "?",
    "[a-z]",
    "~",
    "!",
    "#no comment",
    "\\",
    "a\\nb",
    "%s%d%%",
    "line\nbreak",
    "\n",
    "\t",
    "\r\n",
    "-n",
    "-e",
    "--",
    "-rf",
    "--help",
    "",
    " ",
    "naïve ☃ 漢字 \U0001f9ea",
    "e\u0301",
    "=",
    "a=b",
    "{a,b}",
    "\x01\x1b[0m\x7f",
)


@check("EX-3.cwd", needs={"exec"})
async def cwd(case: Case) -> None:
    """A cwd that is relative, outside, missing or a file is refused by type; nothing is run."""
    scratch = await case.scratch()
    name = case.name("ran-")
    await case.files.write(scratch / "file", b"")
    marker = case.dialect.save(name, b"ran")
    refused: list[tuple[PurePosixPath, type[Exception]]] = [
        (PurePosixPath("relative"), InvalidArgument),
        (PurePosixPath("."), InvalidArgument),
        (scratch / ".." / scratch.name, InvalidArgument),
        (PurePosixPath("/workspace/../etc"), InvalidArgument),
        (PurePosixPath("/"), OutsideWorkspace),
        (PurePosixPath("/etc"), OutsideWorkspace),
        (PurePosixPath("/workspacefoo"), OutsideWorkspace),
        (PurePosixPath("/workspace2"), OutsideWorkspace),
        (scratch / "missing", NotFound),
        (scratch / "missing" / "deeper", NotFound),
        (scratch / "file", NotADirectory),
    ]
    for path, kind in refused:
        with expect_raises(kind, what=f"exec in {path}", effect=Effect.NONE):
            await case.sh(marker, cwd=path)
    for place in (WORKSPACE, scratch):
        require(not await case.exists(place / name), "a refused command has run (EX-3)")
    await case.sh(marker, cwd=scratch)
    require(await case.exists(scratch / name), "the same command in a sound cwd left no file")


@check("EX-3.cwd-used", needs={"exec"})
async def cwd_used(case: Case) -> None:
    """A command runs in the cwd asked for; in the workspace when none is."""
    d, scratch = case.dialect, await case.scratch()
    inner = scratch / "in ner" / "é"
    await case.files.make_directory(inner)
    await case.sh(d.save("here", b"1"), cwd=inner)
    equal(await case.files.read(inner / "here"), b"1", "a file written in the cwd")
    name = case.name("default-")
    await case.sh(d.save(name, b"2"))
    equal(await case.files.read(WORKSPACE / name), b"2", "a file written without a cwd")
    await case.files.remove(WORKSPACE / name)
    result = await case.run(*d.argv(d.load("here")), cwd=inner)
    equal(result.stdout, b"1", "what an argv reads in its cwd")


@check("EX-9.sizes", needs={"exec"}, deadline_s=120)
async def stdin_sizes(case: Case) -> None:
    """Stdin is exactly the given bytes, then end-of-file: 0 B to the limit."""
    d, scratch = case.dialect, await case.scratch()
    limit = case.limits.stdin_bytes
    sizes = [0, 1, 2, 4095, 4096, 4097, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 1024 * KIB]
    sizes = [size for size in sizes if size < limit]
    sizes.append(limit if case.profile.rank > 1 else min(limit, 2048 * KIB))
    for size in sizes:
        data = case.bytes(size)
        result = await case.sh(d.keep("in"), stdin=data, cwd=scratch, timeout=100)
        equal(result.exit_code, 0, f"exit_code with {size} bytes of stdin")
        found = sha256(b"".join([chunk async for chunk in case.files.download(scratch / "in")]))
        equal(found.hexdigest(), sha256(data).hexdigest(), f"{size} bytes of stdin, kept")
    largest = sizes[-1]
    await case.run(*d.argv(d.keep("in")), stdin=case.bytes(largest), cwd=scratch, timeout=100)
    found_size = (await case.files.stat(scratch / "in")).size
    equal(found_size, largest, f"{largest} bytes of stdin, kept by an argv")
    case.evidence["largest"] = largest


@check("EX-9.bytes", needs={"exec"})
async def stdin_bytes(case: Case) -> None:
    """Stdin is byte-exact, and comes back as stdout."""
    d = case.dialect
    for data in (bytes(range(256)), b"", b"\n", b"\r\n", b"no newline", b"\x04\x03\x1a", b"\0" * 9):
        result = await case.sh(d.cat(), d.out(b"|"), stdin=data)
        equal(result.stdout, data + b"|", "stdin, copied to stdout")
        result = await case.run(*d.argv(d.cat()), stdin=data)
        equal(result.stdout, data, "stdin of an argv, copied to stdout")


@contextmanager
def _canary_on_stdin(canary: bytes) -> Iterator[None]:
    """Make this process's own stdin a pipe that holds a canary."""
    kept = os.dup(0)
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, canary)
        os.dup2(read_end, 0)
        yield
    finally:
        os.dup2(kept, 0)
        for descriptor in (kept, read_end, write_end):
            os.close(descriptor)


@check("EX-9.none", needs={"exec"})
async def stdin_none(case: Case) -> None:
    """Without stdin a command sees end-of-file at once; the controller's is never inherited."""
    d = case.dialect
    canary = case.name("canary").encode()
    with _canary_on_stdin(canary):
        result = await case.sh(d.cat(), d.out(b"end"), timeout=5)
    equal(result.timed_out, False, "timed_out")
    equal(result.stdout, b"end", "stdout")


@check("EX-9.unread", needs={"exec"})
async def stdin_unread(case: Case) -> None:
    """A command that does not read a large stdin neither hangs nor fails the call."""
    d = case.dialect
    data = case.bytes(min(1024 * KIB, case.limits.stdin_bytes))
    for script in (d.exit(5), d.seq(d.sleep(0.1), d.out(b"late"), d.exit(5))):
        result = await case.sh(script, stdin=data, timeout=10)
        equal(result.exit_code, 5, "exit_code of a command that does not read its stdin")
        equal(result.timed_out, False, "timed_out")


@check("EX-9.limit", needs={"exec"})
async def stdin_limit(case: Case) -> None:
    """One byte past the stdin limit is too_large; nothing is run."""
    scratch, limit = await case.scratch(), case.limits.stdin_bytes
    script = case.dialect.save("ran", b"")
    with expect_raises(TooLarge, what=f"{limit + 1} bytes of stdin", effect=Effect.NONE):
        await case.sh(script, stdin=bytes(limit + 1), cwd=scratch)
    require(not await case.exists(scratch / "ran"), "the refused command has run")
    await case.sh(script, stdin=b"1", cwd=scratch)
    require(await case.exists(scratch / "ran"), "the same command with less left no file")


def _split(data: bytes) -> list[bytes]:
    if data and not data.endswith(b"\0"):
        raise CheckFailed(f"the arguments are cut off: {data[-40:]!r}")
    return data.split(b"\0")[:-1]


@check("EX-11.exact", needs={"exec"})
async def argv_exact(case: Case) -> None:
    """Argv reaches the program exactly; no shell comes between."""
    scratch = await case.scratch()
    result = await case.run(*case.dialect.show_args(*HOSTILE), cwd=scratch)
    equal(_split(result.stdout), [os.fsencode(arg) for arg in HOSTILE], "the arguments")
    for arg in HOSTILE:
        result = await case.run(*case.dialect.show_args(arg), cwd=scratch)
        equal(_split(result.stdout), [os.fsencode(arg)], "a single argument")
    left = [entry.path.name for entry in await case.files.list(scratch)]
    equal(left, [], "files that arguments made")


@check("EX-11.many", needs={"exec"})
async def argv_many(case: Case) -> None:
    """Many arguments, none, and long ones arrive in order and whole."""
    many = [f"{number}-{'y' * (number % 7)}" for number in range(1000)]
    result = await case.run(*case.dialect.show_args(*many))
    equal(_split(result.stdout), [arg.encode() for arg in many], "1,000 arguments")
    result = await case.run(*case.dialect.show_args())
    equal(_split(result.stdout), [], "no arguments")
    size = min(100_000, case.limits.argv_element_bytes)
    result = await case.run(*case.dialect.show_args("z" * size, "tail"))
    equal(_split(result.stdout), [b"z" * size, b"tail"], f"an argument of {size} bytes")


@check("EX-11.limit", needs={"exec"})
async def argv_limit(case: Case) -> None:
    """An argument of the limit arrives; one byte more is too_large, and nothing is run.

    A variable counts as the argument NAME=VALUE.
    """
    limits = case.limits
    size = min(limits.argv_element_bytes, limits.argv_env_bytes - 4 * KIB)
    result = await case.run(*case.dialect.show_args("z" * size))
    equal(_split(result.stdout), [b"z" * size], f"an argument of {size} bytes")
    over = limits.argv_element_bytes + 1
    with expect_raises(TooLarge, what=f"an argument of {over} bytes", effect=Effect.NONE):
        await case.run(*case.dialect.show_args("z" * over))
    result = await case.sh(case.dialect.var("V"), env={"V": "z" * (size - 2)})
    equal(len(result.stdout), size - 2, f"a variable of {size} bytes, name and all")
    with expect_raises(TooLarge, what=f"a variable of {over} bytes", effect=Effect.NONE):
        await case.sh(case.dialect.var("V"), env={"V": "z" * (over - 2)})
    piece, total = "z" * min(60_000, limits.argv_element_bytes), limits.argv_env_bytes
    with expect_raises(TooLarge, what=f"arguments of {total} bytes", effect=Effect.NONE):
        await case.run(*case.dialect.show_args(*[piece] * (total // len(piece) + 1)))


@check("EX-11.bytes", needs={"exec", "argv_bytes"}, kind=Kind.CLAIM)
async def argv_bytes(case: Case) -> None:
    """Arguments and variables may be any bytes but NUL, as surrogateescape text."""
    every = bytes(range(1, 256))
    result = await case.run(*case.dialect.show_args(os.fsdecode(every), os.fsdecode(b"\xff\xfe")))
    equal(_split(result.stdout), [every, b"\xff\xfe"], "arguments of all bytes")
    result = await case.sh(case.dialect.var("ODD"), env={"ODD": os.fsdecode(b"\xff\x80 \xc3\xa9")})
    equal(result.stdout, b"\xff\x80 \xc3\xa9", "a variable that is not UTF-8")


@check("EX-11.bytes-absent", needs={"exec", "!argv_bytes"}, kind=Kind.CLAIM)
async def argv_bytes_absent(case: Case) -> None:
    """Without argv_bytes an argument that is not UTF-8 is invalid_argument; UTF-8 passes."""
    with expect_raises(InvalidArgument, what="a non-UTF-8 argument", effect=Effect.NONE):
        await case.run(*case.dialect.show_args(os.fsdecode(b"a\xffb")))
    result = await case.run(*case.dialect.show_args("a☃b"))
    equal(_split(result.stdout), ["a☃b".encode()], "a UTF-8 argument")


@check("EX-12.request", needs={"exec"})
async def env_request(case: Case) -> None:
    """The request's variables arrive exactly, in shell and argv; others are untouched."""
    env = {
        "SIMPLE": "value",
        "EMPTY": "",
        "SPACES": "  a  b ",
        "QUOTES": 'it\'s "so"',
        "DOLLAR": "$HOME $(touch pwned) `x`",
        "EQUALS": "a=b=c",
        "LINES": "one\ntwo\n",
        "_UNDER9": "naïve ☃",
        "STAR": "*",
    }
    scratch = await case.scratch()
    d = case.dialect
    for name, value in env.items():
        result = await case.sh(d.var(name), env=env, cwd=scratch)
        equal(result.stdout, os.fsencode(value), f"${name} in a script")
    result = await case.run(*d.argv(d.var("QUOTES")), env=env, cwd=scratch)
    equal(result.stdout, os.fsencode(env["QUOTES"]), "$QUOTES in an argv")
    result = await case.sh(d.var("SIMPLE"), env={"SIMPLE": "other"})
    equal(result.stdout, b"other", "$SIMPLE of the next call")
    result = await case.sh(d.var("SIMPLE"), d.out(b"|"))
    equal(result.stdout, b"|", "$SIMPLE of a call without it")


@check("EX-12.no-leak", needs={"exec"}, place=Place.OWN)
async def env_no_leak(case: Case) -> None:
    """Nothing of the controller's environment reaches a command."""
    canary, name = case.name("canary"), f"LEAK_{case.name().upper()}"
    os.environ[name] = canary
    try:
        async with case.another() as instance:
            from pinfold.provider import ExecRequest

            result = await instance.exec(ExecRequest(shell=case.dialect.env()))
            value = await instance.exec(ExecRequest(shell=case.dialect.var(name)))
            control = await instance.exec(
                ExecRequest(shell=case.dialect.var(name), env={name: canary})
            )
    finally:
        del os.environ[name]
    equal(control.stdout, canary.encode(), "the same variable when it is asked for")
    require(canary.encode() not in result.stdout, "a variable of the controller is in `env`")
    equal(value.stdout, b"", "a variable of the controller")
    for secret in ("VIRTUAL_ENV", "PYTEST_CURRENT_TEST", "SSH_AUTH_SOCK", "PYTHONPATH"):
        if secret in os.environ:
            require(f"{secret}=".encode() not in result.stdout, f"{secret} leaks into a command")
    require(sys.executable.encode() not in result.stdout, "the controller's Python is in `env`")


@check("EX-12.own", needs={"exec"})
async def env_own(case: Case) -> None:
    """PINFOLD_WORKSPACE names the workspace; PINFOLD_* of a request is dropped and listed."""
    d = case.dialect
    result = await case.sh(d.var("PINFOLD_WORKSPACE"), d.out(b"\n"), d.pwd())
    variable, _, physical = result.stdout.partition(b"\n")
    require(variable, "PINFOLD_WORKSPACE is not set (contract, section 0)")
    equal(variable, physical.rstrip(b"\n"), "PINFOLD_WORKSPACE against the default cwd")
    equal(result.env_dropped, (), "env_dropped of a request without PINFOLD_*")
    env = {"PINFOLD_WORKSPACE": "/elsewhere", "PINFOLD_EXTRA": "x", "PLAIN": "kept"}
    result = await case.sh(
        d.var("PINFOLD_WORKSPACE"), d.out(b"|"), d.var("PINFOLD_EXTRA"), d.var("PLAIN"), env=env
    )
    equal(result.stdout, variable + b"|kept", "variables of a request with PINFOLD_*")
    equal(tuple(sorted(result.env_dropped)), ("PINFOLD_EXTRA", "PINFOLD_WORKSPACE"), "env_dropped")
