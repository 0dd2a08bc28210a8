"""Gives a command of level none what its spawn can't, then becomes it.

A program of its own, `python -I -S -X utf8 _starter.py WORDS LC_CTYPE PROGRAM ARGUMENT...`, put in
front of a command only where `words` says that there is something to do: a signal that is ignored
or blocked stays so in what is spawned, and Python's own ways out of that are not safe beside
threads. The environment is the command's own, but for `LC_CTYPE`: the interpreter sets that where
it finds the C locale, so it is told what it was.
"""

from __future__ import annotations

# `signal` without its enums: what is ignored is asked before every command.
import _signal  # type: ignore[import-not-found]
import errno
import os
import sys

#: Signals that a spawn passes on as they are. The two others `subprocess` restores by itself; the
#: starter's own interpreter ignores them again.
_OTHERS = tuple(
    number for number in range(1, _signal.NSIG) if number not in {_signal.SIGPIPE, _signal.SIGXFSZ}
)


def words(rlimits: dict[str, tuple[int, int]], *, terminal: bool) -> list[str]:
    """Return what is to be done before a command is one; nothing, mostly.

    Args:
        rlimits: soft and hard ones by their names in the resource module.
        terminal: make stdin the controlling terminal.
    """
    has_ignored = _signal.SIG_IGN in map(_signal.getsignal, _OTHERS)
    has_blocked = bool(_signal.pthread_sigmask(_signal.SIG_BLOCK, ()))
    return [
        *(["signals"] if terminal or rlimits or has_ignored or has_blocked else []),
        *(["terminal"] if terminal else []),
        *(f"{name}={soft}:{hard}" for name, (soft, hard) in rlimits.items()),
    ]


def command(todo: list[str], argv: list[str], env: dict[str, str]) -> list[str]:
    """Return an argv that does what is to be done, and then becomes `argv`."""
    if not todo:
        return argv
    start = [sys.executable, "-I", "-S", "-X", "utf8", __file__, ",".join(todo)]
    return [*start, env.get("LC_CTYPE", ""), *argv]


def main() -> None:
    """Do what the words say and become the command; end as a shell does where that fails (EX-2)."""
    _, todo, locale, *argv = map(os.fsencode, sys.argv)
    os.environb.pop(b"LC_CTYPE", None)
    if locale:
        os.environb[b"LC_CTYPE"] = locale
    for word in os.fsdecode(todo).split(","):
        try:
            _do(word)
        except (OSError, ValueError) as error:
            _end(126, word, str(error))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        is_absent = error.errno in {errno.ENOENT, errno.ENOTDIR}
        _end(127 if is_absent else 126, os.fsdecode(argv[0]), os.strerror(error.errno or 0))


def _end(code: int, what: str, why: str) -> None:
    os.write(2, os.fsencode(f"{what}: {why}\n"))
    os._exit(code)


def _do(word: str) -> None:
    if word == "terminal":
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    elif word == "signals":
        import signal

        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    else:
        import resource

        name, _, limits = word.partition("=")
        soft, _, hard = limits.partition(":")
        resource.setrlimit(getattr(resource, name), (int(soft), int(hard)))


if __name__ == "__main__":
    main()
