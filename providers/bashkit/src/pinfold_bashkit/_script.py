"""What is handed to the interpreter for a request: one line of shell around it.

A subshell isolates whatever runs in it (EX-10), at a tenth of the price of `bash -c`. Text that
could break out of it, or that means something else inside one, goes through `bash -c` after all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pinfold.provider import ExecRequest
from pinfold.spec import WORKSPACE

__all__ = ["quote", "script_of"]


def quote(text: str) -> str:
    """Return one shell word that stands for exactly `text`."""
    return "'" + text.replace("'", "'\\''") + "'"


def script_of(
    request: ExecRequest,
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin: str | None,
    parses: Callable[[str], bool],
) -> str:
    """Return the script that runs a request by itself.

    Args:
        request: argv or a shell script.
        cwd: where, literally.
        env: to be exported.
        stdin: a file of the virtual file system to read from, or None for nothing.
        parses: whether the interpreter can parse a script.
    """
    start = "(history -c;"  # what ran before is nobody's business
    if cwd != str(WORKSPACE):  # where every interpreter is
        start += f"cd {quote(cwd)};unset OLDPWD;"
    for name, value in env.items():
        start += f"export {name}={quote(value)};"
    end = "\n)" + (f" <{quote(stdin)}" if stdin else "")
    if request.argv is not None:
        return start + _command(request.argv) + end
    text = request.shell or ""
    script = start + text + end
    closed = ")" not in text or parses(text)  # nothing in it can end the subshell
    if closed and not text.endswith("\\") and parses(script):
        return script
    return start + "bash -c " + quote(text) + end


def _command(argv: tuple[str, ...]) -> str:
    if not argv[0]:  # bashkit would take the empty command for none at all
        return "echo 'bash: : command not found' >&2;exit 127"
    return " ".join(map(quote, argv))
