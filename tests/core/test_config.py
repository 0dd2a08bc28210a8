"""pinfold.toml: profiles, templates, connections and the store, found upwards, the project's first."""

from __future__ import annotations

import pytest

import pinfold
from pinfold import config
from pinfold.errors import InvalidArgument, NotFound, SpecInvalid
from pinfold.plugins import Hooks, TemplateRevision, hookimpl
from pinfold.resolve import SetMode, resolve
from tests.core.support import catalog

FULL = """
default = "scratch"
mode = "configurable"

[defaults.lifecycle]
idle_after_seconds = 42

[profiles.scratch]
target = { kind = "vfs" }

[profiles.build]
template = "base"
durability = "none"

[templates.base]
target = { kind = "container", provider = "toy" }

[connections.vendor]
host = "h.example"
api_key = "env:KEY"

[store]
url = "memory://x"
keep = 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a deeper one, no user file, and no variable of ours."""
    for name in ("PINFOLD_CONFIG", "PINFOLD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(config, "user_file", lambda: tmp_path / "user" / "pinfold.toml")
    deep = tmp_path / "project" / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    return tmp_path / "project"


def write(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "pinfold.toml").write_text(text)


def test_a_file_is_found_upwards_and_read_whole(project):
    write(project, FULL)

    loaded = config.load()

    assert loaded.path == project / "pinfold.toml"
    assert (loaded.default, loaded.mode) == ("scratch", SetMode.CONFIGURABLE)
    assert (loaded.store.url, loaded.store.keep) == ("memory://x", 3)
    assert loaded.registered(Hooks()).names == ("vendor",)
    spec = resolve(loaded.profile_set.select().layers, catalog())
    assert spec.lifecycle.idle_after_seconds == 42


def test_without_a_file_there_is_nothing(project):
    assert config.load() == config.Project()


def test_rs3_a_template_of_the_file_has_a_revision_that_an_edit_changes(project):
    write(project, FULL)
    before = config.load().template("base", Hooks())
    write(project, FULL.replace('provider = "toy"', 'provider = "other"'))
    after = config.load().template("base", Hooks())

    assert before.revision_id.startswith("tr_")
    assert before.revision_id != after.revision_id
    write(project, FULL + "\n# a comment\n")
    assert config.load().template("base", Hooks()) == before
    assert config.load().template("nope", Hooks()) is None


def test_rs3_a_template_comes_from_the_hook_first(project):
    class Source:
        @hookimpl
        def pinfold_template(self, name):
            return TemplateRevision(name=name, revision_id="tr_hook", spec={"target": None})

    write(project, FULL)
    hooks = Hooks()
    hooks.register(Source())

    assert config.load().template("base", hooks).revision_id == "tr_hook"


def test_rs3_the_revision_is_pinned_into_the_profiles_spec(project):
    write(project, FULL)
    loaded = config.load()
    template = loaded.template("base", Hooks())

    selection = loaded.profile_set.select("build", lambda name: loaded.template(name, Hooks()))

    assert resolve(selection.layers, catalog()).template_revision_id == template.revision_id


def test_precedence_flag_variable_project_user(project, tmp_path, monkeypatch):
    write(
        tmp_path / "user",
        'default = "u"\n[profiles.u]\ntarget = { kind = "vfs" }\n[profiles.p]\ntarget = { kind = "host" }\n[store]\nkeep = 9',
    )
    assert config.load().default == "u"

    write(project, 'default = "p"\n[profiles.p]\ntarget = { kind = "vfs" }')
    loaded = config.load()
    assert loaded.default == "p"
    assert loaded.profiles["p"] == {"target": {"kind": "vfs"}}
    assert loaded.store.keep == 9

    monkeypatch.setenv("PINFOLD_PROFILE", "u")
    assert config.load().default == "u"

    other = tmp_path / "other.toml"
    other.write_text('[profiles.o]\ntarget = { kind = "vfs" }')
    monkeypatch.setenv("PINFOLD_CONFIG", str(other))
    assert config.load().path == other
    assert config.load(project / "pinfold.toml").path == project / "pinfold.toml"


def test_a_variable_that_names_no_file_is_an_error(project, monkeypatch):
    monkeypatch.setenv("PINFOLD_CONFIG", "/no/such/file.toml")

    with pytest.raises(NotFound, match="PINFOLD_CONFIG"):
        config.load()


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = ", 1, 5),
        ("x = 1\ny = = 2\n", 2, 5),
        ("[a\n", 1, 3),
        ('a = "\n', 1, 6),
        ("a = 1\na = 2\n", 2, 6),
    ],
)
def test_a_syntax_error_in_toml_has_line_and_column(text, line, column):
    with pytest.raises(InvalidArgument, match=f"line {line}, column") as caught:
        config.parse(text, "pinfold.toml")

    assert caught.value.details == {"line": line, "column": pytest.approx(column, abs=1)}


@pytest.mark.parametrize(
    ("text", "line", "column"), [("{", 1, 2), ('{\n "a": }', 2, 7), ("", 1, 1)]
)
def test_a_syntax_error_in_json_has_line_and_column(text, line, column):
    with pytest.raises(InvalidArgument, match=f"line {line}, column {column}"):
        config.parse(text, "spec.json")


DIGITS = "1" * 5000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec.json", "[]"),
        ("spec.json", "3"),
        ("spec.json", "[" * 100_000),
        ("spec.json", f'{{"a": {DIGITS}}}'),
        ("spec.json", '{"a": {"b": 1, "c": 2, "b": 3}}'),
        ("spec.json", "\ufeff{}"),
        ("spec.toml", f"a = {DIGITS}"),
        ("spec.toml", "a = " + "[" * 100_000),
        ("spec.toml", "\ufeffa = 1"),
        ("spec.toml", "a = '\0'"),
    ],
    ids=range(10),
)
def test_a_text_that_no_spec_can_be_is_an_invalid_argument(name, text):
    with pytest.raises(InvalidArgument, match=r"spec\.") as caught:
        config.parse(text, name)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "at", "suggestion"),
    [
        ("profile = 1", "/profile", "profiles"),
        ("[profiles]\nx = 1", "/profiles/x", None),
        ("[store]\nurll = 'x'", "/store/urll", "url"),
        ("[store]\nkeep = 'x'", "/store/keep", None),
        ("mode = 'fix'", "/mode", "fixed"),
        ("default = 3", "/default", None),
        ("[profiles.p]\ntemplate = 3", "/profiles/p/template", None),
        ("[templates]\nt = 'x'", "/templates/t", None),
    ],
)
def test_unknown_keys_and_wrong_types_are_faults_that_name_the_file(project, text, at, suggestion):
    write(project, text)

    with pytest.raises(SpecInvalid, match=r"pinfold\.toml") as caught:
        config.load()

    assert [(f.pointer, f.suggestion) for f in caught.value.faults] == [(at, suggestion)]


def test_a_template_with_what_json_cannot_hold_is_a_fault(project):
    write(project, "[templates.t.target]\nkind = 2026-01-01")

    with pytest.raises(SpecInvalid) as caught:
        config.load().template("t", Hooks())

    assert [fault.pointer for fault in caught.value.faults] == ["/templates/t/target/kind"]


def test_a_spec_at_fault_is_found_when_it_is_resolved_with_its_pointer(project):
    write(project, "[profiles.p]\ntarget = { kind = 'vsf' }")

    with pytest.raises(SpecInvalid) as caught:
        config.load().profile_set.resolve_all(catalog())

    assert [(f.pointer, f.suggestion) for f in caught.value.faults] == [
        ("/profiles/p/target/kind", "vfs")
    ]


@pytest.mark.parametrize("name", ["missing.json", "missing.toml"])
def test_a_file_that_is_not_there_is_not_found(tmp_path, name):
    with pytest.raises(NotFound, match=name):
        config.read_document(tmp_path / name)


@pytest.mark.parametrize("name", ["x.toml", "folder.toml", "a\0.toml", "\ud800.toml"])
def test_a_file_that_cannot_be_read_is_an_invalid_argument(tmp_path, name):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.toml").mkdir()

    with pytest.raises(InvalidArgument, match=r"\.toml"):
        config.read_document(tmp_path / name)


def test_what_a_file_names_is_relative_to_the_file(project):
    write(project, '[connections.c]\ntoken = "file:secret.txt"\nhost = "h"\n[store]\nurl = "kept"')

    loaded = config.load()

    assert loaded.connections["c"] == {"token": f"file:{project / 'secret.txt'}", "host": "h"}
    assert loaded.store.url == str(project / "kept")


@pytest.mark.parametrize("keep", [0, -1])
def test_a_store_keeps_at_least_one_checkpoint(project, keep):
    write(project, f"[store]\nkeep = {keep}")

    with pytest.raises(SpecInvalid) as caught:
        config.load()
    assert caught.value.faults[0].pointer.startswith("/store")


@pytest.mark.anyio
async def test_rs3_two_templates_cannot_be_pinned(project):
    write(project, FULL + "[templates.second]\ndurability = 'none'\n")

    with pytest.raises(InvalidArgument, match="two can't be pinned"):
        await pinfold.open("build", template="second")
