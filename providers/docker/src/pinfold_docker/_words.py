"""Arguments and variables that are no UTF-8, through an API that carries nothing else.

The engine's API is JSON, in which a byte that is no UTF-8 becomes a replacement character. Where
there is one, a shell in the container puts the words together, from octal escapes, and becomes the
program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["shell_argv"]

#: One argument takes at most 128 KiB, so a long script comes in pieces.
PIECE_BYTES: Final = 96 * 1024
JOIN: Final = 'IFS=; s="$*"; unset IFS; eval "$s"'
SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/.,:=+@-_")


def shell_argv(
    argv: Sequence[str], env: Mapping[str, str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return an argv and variables that JSON can carry and that come to the same.

    Args:
        argv: str with surrogateescape.
        env: likewise.
    """
    odd = {name: value for name, value in env.items() if not _plain(value)}
    if not odd and all(map(_plain, argv)):
        return argv, env
    lines = ["k=${LC_ALL-unset} LC_ALL=C"]  # so that no byte is taken for part of a character
    for name, value in odd.items():
        lines.append(f"{name}={_printf(value)}; {name}=${{{name}%_}}; export {name}")
    lines.append("set --")
    lines += [f'w={_printf(word)}; set -- "$@" "${{w%_}}"' for word in argv]
    lines.append('if [ "$k" = unset ]; then unset LC_ALL; else LC_ALL=$k; fi; unset k w')
    lines.append('exec "$@"')
    script = "\n".join(lines)
    pieces = [script[at : at + PIECE_BYTES] for at in range(0, len(script), PIECE_BYTES)]
    kept = {name: value for name, value in env.items() if name not in odd}
    return ["/bin/sh", "-c", JOIN, "sh", *pieces], kept


def _plain(word: str) -> bool:
    return word.isascii() or not any("\udc80" <= char <= "\udcff" for char in word)


def _printf(word: str) -> str:
    text = "".join(
        chr(byte) if byte in SAFE else f"\\{byte:03o}"
        for byte in word.encode("utf-8", "surrogateescape")
    )
    return f"$(printf -- '{text}_')"  # the mark keeps newlines at the end
