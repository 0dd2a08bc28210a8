"""What is handed to the interpreter for a request: one line of shell around it.

A subshell isolates whatever runs in it (EX-10), at a tenth of the price of `bash -c`. Text that
could break out of it, or that means something else inside one, goes through `bash -c` after all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pinfold.provider import ExecRequest
from pinfold.spec import WORKSPACE

if TYPE_CHECKING:
    from bashkit import ScriptAnalysis

__all__ = ["only_reads", "quote", "script_of"]

#: Built-ins of the interpreter that can write no file, whatever their arguments are.
_READERS: Final = frozenset(
    {
        ":", "[", "basename", "cat", "cd", "cut", "date", "dirname", "echo", "egrep", "exit",
        "expr", "false", "fgrep", "grep", "head", "id", "ls", "printf", "pwd", "rev", "seq",
        "sleep", "stat", "test", "tr", "true", "uname", "wc", "whoami",
    }
)  # fmt: skip
_LONG: Final = 4096
#: Characters that a plain script does not have.
_SPECIAL: Final = frozenset("$`(){}<>\\")


def only_reads(request: ExecRequest, analyze: Callable[[str], ScriptAnalysis | None]) -> bool:
    """Say whether a request provably writes nothing, so that no checkpoint need look (LC-3).

    A no costs a scan, a wrong yes would cost a change: whatever is not plain is a no.

    Args:
        request: argv or a shell script.
        analyze: what the interpreter makes of a script without running it.
    """
    if request.argv is not None:
        return request.argv[0] in _READERS
    text = request.shell or ""
    # Nothing that expands, redirects or groups: a command can hide in each of these.
    if len(text) > _LONG or not _SPECIAL.isdisjoint(text):
        return False
    found = analyze(text)
    return (
        found is not None
        and not found.is_opaque
        and not found.truncated
        and not found.functions
        and _READERS.issuperset(found.command_names)
    )


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
