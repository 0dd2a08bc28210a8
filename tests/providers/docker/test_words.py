"""Words that JSON can't carry reach the program all the same, byte by byte (EX-11, argv_bytes)."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold_docker._words import shell_argv

WORD = st.one_of(
    st.binary(max_size=40).map(lambda data: os.fsdecode(data.replace(b"\0", b"\xff"))),
    st.sampled_from(
        ["", "-n", "--", "a\n\n", "\udcff\n", "$(x)", "`x`", "'", '"', "\\", "*", "%s"]
    ),
)
NAME = st.sampled_from(["A", "LC_ALL", "w", "pinfold_w", "_A"])


def run(argv: list[str], env: dict[str, str], shell: str) -> bytes:
    """Run what the words become, by way of JSON, and return what the program said."""
    words, variables = json.loads(json.dumps(shell_argv(argv, env)))
    if words[0] == "/bin/sh":
        words[0] = shell
    done = subprocess.run(
        words, env={"PATH": os.environ["PATH"], **variables}, check=True, capture_output=True
    )
    return done.stdout


@pytest.fixture(scope="module", params=["/bin/dash", "/bin/bash", "/bin/busybox"])
def shell(request, tmp_path_factory) -> str:
    if not Path(request.param).exists():
        pytest.skip(f"{request.param} is not here")
    link = tmp_path_factory.mktemp("shell") / "sh"
    link.symlink_to(request.param)
    return str(link)


@settings(max_examples=60)
@given(words=st.lists(WORD, max_size=4), env=st.dictionaries(NAME, WORD, max_size=2))
def test_words_are_exact(shell, words, env):
    said = run(["printf", "%s\\0", *words, "\udcfe"], env, shell)
    assert said.split(b"\0")[:-1] == [os.fsencode(word) for word in (*words, "\udcfe")]


@settings(max_examples=40)
@given(env=st.dictionaries(NAME, WORD, min_size=1))
def test_variables_are_exact_and_none_is_added(shell, env):
    said = run(["cat", "/proc/self/environ"], env, shell)
    found = dict(line.split(b"=", 1) for line in said.split(b"\0")[:-1])
    for name in ("PWD", "SHLVL", "_", "OLDPWD", "PATH"):  # a shell's own
        found.pop(name.encode(), None)
    assert found == {name.encode(): os.fsencode(value) for name, value in env.items()}


def test_a_long_word_is_exact(shell):
    word = os.fsdecode(bytes(range(1, 256)) * 500)
    assert run(["printf", "%s", word], {}, shell) == os.fsencode(word)


@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_what_json_can_carry_is_left_alone(words):
    assert shell_argv(words, {}) == (words, {})
