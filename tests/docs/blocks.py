"""The code blocks of a Markdown page, with the marks that say what each is.

A mark is an HTML comment right above a block:

- `<!-- file: NAME -->`: the block is a file; it is written under the page's folder.
- `<!-- output -->`: a text block that the block before it has printed; `...` stands for anything
  within a line, and on a line of its own for any lines.
- `<!-- from: NAME -->`: the block is a piece of a file that is there by now, word for word; it may
  stand further left than in the file.
- `<!-- dry run -->`: the block's `make` commands are looked up and not run.
"""

import re
from pathlib import Path

import attrs
from markdown_it import MarkdownIt

LANGUAGES = ("bash", "console", "json", "python", "text", "toml")

_MARK = re.compile(r"<!--\s*(file|from|output|dry run)(?::\s*(\S+))?\s*-->")


class BadPage(AssertionError):
    """A page has a block that can't be checked."""


@attrs.frozen(kw_only=True)
class Block:
    """One code block; `line` is where its text begins, from 1."""

    page: str
    line: int
    language: str
    text: str
    file: str | None = None
    source: str | None = None
    output: bool = False
    dry_run: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: Path, name: str) -> list[Block]:
    """Return a page's blocks in order; a block that no rule checks is refused."""
    blocks, mark = [], None
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        at = f"{name}:{(token.map or [0])[0] + 1}"
        if token.type == "html_block":
            mark = _MARK.fullmatch(token.content.strip())
            if mark is None:
                raise BadPage(f"{at}: this comment is no mark: {token.content.strip()!r}")
        elif token.type == "code_block":
            raise BadPage(f"{at}: an indented block has no language; fence it")
        elif token.type == "fence":
            blocks.append(_block(name, token.info, token.content, (token.map or [0])[0] + 2, mark))
            mark = None
        elif mark is not None:
            raise BadPage(f"{at}: a mark belongs right above a block")
    return blocks


def _block(page: str, info: str, text: str, line: int, mark: re.Match[str] | None) -> Block:
    kind, value = (mark[1], mark[2]) if mark else (None, None)
    block = Block(
        page=page,
        line=line,
        language=info.strip(),
        text=text,
        file=value if kind == "file" else None,
        source=value if kind == "from" else None,
        output=kind == "output",
        dry_run=kind == "dry run",
    )
    if kind in ("file", "from") and (
        not value or value.startswith("/") or ".." in value.split("/")
    ):
        raise BadPage(f"{block}: a file has a name below the page's folder")
    if block.language not in LANGUAGES:
        raise BadPage(f"{block}: {block.language!r} is none of {', '.join(LANGUAGES)}")
    if block.output and block.language not in ("text", "json"):
        raise BadPage(f"{block}: output is text or json")
    if block.dry_run and block.language != "bash":
        raise BadPage(f"{block}: only bash is run dry")
    return block
