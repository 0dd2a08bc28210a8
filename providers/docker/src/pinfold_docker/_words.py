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
JOIN: Final = 'IFS=; pinfold_s="$*"; unset IFS; eval "unset pinfold_s; $pinfold_s"'
SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/.,:=+@-_")


def shell_argv(
    argv: Sequence[str], env: Mapping[str, str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return an argv and variables that JSON can carry and that come to the same.

    Args:
        argv: str with surrogateescape.
        env: likewise.
    """
    if all(map(_plain, (*argv, *env.values()))):
        return argv, env
    # In the C locale, so that no byte is taken for part of a character.
    lines = ["pinfold_k=${LC_ALL-unset} LC_ALL=C", "set --"]
    settings = [f"{name}={value}" for name, value in env.items()]
    lines += [
        f'pinfold_w={_printf(word)}; set -- "$@" "${{pinfold_w%_}}"'
        for word in (("env", *settings, *argv) if env else argv)
    ]
    lines.append('if [ "$pinfold_k" = unset ]; then unset LC_ALL; else LC_ALL=$pinfold_k; fi')
    lines.append('unset pinfold_k pinfold_w; exec "$@"')
    script = "\n".join(lines)
    pieces = [script[at : at + PIECE_BYTES] for at in range(0, len(script), PIECE_BYTES)]
    return ["/bin/sh", "-c", JOIN, "sh", *pieces], {}


def _plain(word: str) -> bool:
    return word.isascii() or not any("\udc80" <= char <= "\udcff" for char in word)


def _printf(word: str) -> str:
    text = "".join(
        chr(byte) if byte in SAFE else f"\\{byte:03o}"
        for byte in word.encode("utf-8", "surrogateescape")
    )
    return f"$(printf -- '{text}_')"  # the mark keeps newlines at the end
