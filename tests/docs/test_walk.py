"""The runner of the docs' blocks itself: what it must refuse, it refuses."""

import pytest

from tests.docs.blocks import BadPage, read_blocks
from tests.docs.walk import BlockFailed, Walk, this_bin

F = "```"


@pytest.fixture
def walk(tmp_path):
    """Walks through a page of the text given."""

    def walk(text: str) -> None:
        page = tmp_path / "page.md"
        page.write_text(text)
        folder = tmp_path / "folder"
        folder.mkdir()
        Walk(folder, this_bin()).run(read_blocks(page, "page.md"))

    return walk


SOUND = {
    "python shares names": f"{F}python\nx = 1\n{F}\n{F}python\nassert x == 1\n{F}",
    "python prints": f"{F}python\nprint('a')\n{F}\n<!-- output -->\n{F}text\na\n{F}",
    "bash prints": f"{F}bash\necho a\necho b\n{F}\n<!-- output -->\n{F}text\n...\nb\n{F}",
    "console": f"{F}console\n$ echo a b\na ...\n$ false\n$ echo $?\n1\n$ echo \\\n> c\nc\n{F}",
    "console: no newline at the end": f"{F}console\n$ printf a\na\n{F}",
    "file": f"<!-- file: d/x.json -->\n{F}json\n{{}}\n{F}\n{F}bash\ntest -f d/x.json\n{F}",
    "a piece of a file": (
        f"{F}bash\nprintf 'a\\n  if b:\\n\\n    c\\nd\\n' > x\n{F}\n"
        f"<!-- from: x -->\n{F}python\nif b:\n\n  c\n{F}"
    ),
    "documents": f"{F}json\n[1]\n{F}\n{F}toml\na = 1\n{F}\n{F}text\nanything\n{F}",
}

FAILS = {
    "python raises": (f"line\n\n{F}python\nx = 1\n1 / 0\n{F}", r'"page.md", line 5(.|\n)*ZeroDiv'),
    "python warns": (f"{F}python\nimport warnings; warnings.warn('w')\n{F}", "UserWarning"),
    "python ends": (f"{F}python\nimport os; os._exit(0)\n{F}", "Python ended"),
    "python prints otherwise": (
        f"{F}python\nprint('a')\n{F}\n<!-- output -->\n{F}text\nb\n{F}",
        "the page shows\nb",
    ),
    "output of nothing": (f"<!-- output -->\n{F}text\nb\n{F}", "no block before it"),
    "bash fails in the middle": (f"{F}bash\nfalse\ntrue\n{F}", "exit code 1"),
    "bash fails in a pipe": (f"{F}bash\nfalse | true\n{F}", "exit code 1"),
    "console prints otherwise": (f"{F}console\n$ echo a\nb\n{F}", "it printed\na"),
    "console prints more": (f"{F}console\n$ echo a\n{F}", "it printed\na"),
    "console prints less": (f"{F}console\n$ true\na\n{F}", "the page shows\na"),
    "console fails": (f"{F}console\n$ false\n$ echo a\na\n{F}", "exit code 1"),
    "console exits": (f"{F}console\n$ exit 0\n$ echo a\na\n{F}", "ended the shell"),
    "console without a command": (f"{F}console\na\n{F}", "begins with"),
    "a piece of no file": (f"<!-- from: x -->\n{F}python\na\n{F}", "there is no file x"),
    "a piece that is none": (
        f"<!-- file: x -->\n{F}text\na\nb\n{F}\n<!-- from: x -->\n{F}text\nb\na\n{F}",
        "no piece of x",
    ),
    "a piece without text": (
        f"<!-- file: x -->\n{F}text\na\n{F}\n<!-- from: x -->\n{F}text\n{F}",
        "is empty",
    ),
    "bad toml": (f"{F}toml\na =\n{F}", "page.md:2"),
    "bad json in a file": (f"<!-- file: x.json -->\n{F}json\n{{\n{F}", "page.md:3"),
    "dry run of more": (f"<!-- dry run -->\n{F}bash\nrm -r x\n{F}", "only `make TARGET`"),
    "dry run of no target": (f"<!-- dry run -->\n{F}bash\nmake nosuch\n{F}", "exit code 2"),
}

REFUSED = {
    "no language": f"{F}\nx\n{F}",
    "unknown language": f"{F}ruby\nx\n{F}",
    "indented block": "text\n\n    code\n",
    "comment that is no mark": "<!-- skip -->\n\ntext",
    "mark above no block": "<!-- output -->\n\ntext",
    "file outside": f"<!-- file: ../x -->\n{F}text\nx\n{F}",
    "file without a name": f"<!-- file -->\n{F}text\nx\n{F}",
    "a piece from outside": f"<!-- from: ../x -->\n{F}text\nx\n{F}",
    "a piece without a name": f"<!-- from -->\n{F}text\nx\n{F}",
    "python as output": f"<!-- output -->\n{F}python\nx\n{F}",
}


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_a_sound_page_passes(walk, text):
    walk(text)


@pytest.mark.parametrize(("text", "message"), FAILS.values(), ids=FAILS)
def test_a_page_that_does_not_hold_fails_and_says_where(walk, text, message):
    with pytest.raises(BlockFailed, match=message) as caught:
        walk(text)
    assert str(caught.value).startswith("page.md:")


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_page_with_a_block_that_nothing_would_check_is_refused(walk, text):
    with pytest.raises(BadPage, match=r"page\.md:\d+"):
        walk(text)


def test_a_reader_has_no_variables_of_ours(walk, monkeypatch):
    monkeypatch.setenv("PINFOLD_CONFIG", "/nowhere")
    monkeypatch.setenv("MAKEFLAGS", "n")
    walk(f"{F}console\n$ env | grep -E '^(PINFOLD|MAKE|PYTHON)' | wc -l\n0\n{F}")
