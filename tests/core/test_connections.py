"""PR-5: credentials by reference, resolved at the moment of use, shown nowhere."""

from __future__ import annotations

import functools
import json
import logging
import pickle
import sys
import types
from urllib.parse import quote

import attrs
import pytest

import pinfold
from pinfold.connections import Connection, Connections, Secret, redact, scrub, scrub_error
from pinfold.errors import Internal, NotFound, SpecInvalid, Unauthorized, Unavailable
from pinfold.plugins import Catalog, Hooks, hookimpl
from pinfold.provider import ExecResult
from pinfold.sandbox import Runtime
from pinfold.spec import to_json
from tests.core.support import ToyProvider

CANARY = "c4n4ry-s3cr3t-0451"
QUOTES = "'\""

pytestmark = pytest.mark.anyio


@pytest.fixture
def env(monkeypatch):
    monkeypatch.setenv("TOY_KEY", CANARY)


async def test_pr5_env_and_file_references_are_resolved_when_they_are_used(
    env, tmp_path, monkeypatch
):
    secret = tmp_path / "key"
    secret.write_text("from-file\n")
    connections = Connections(
        {
            "c": {
                "host": "h.example",
                "port": 22,
                "api_key": "env:TOY_KEY",
                "password": f"file:{secret}",
            }
        }
    )
    monkeypatch.setenv("TOY_KEY", "changed-later")

    connection = await connections.resolve("c")

    assert connection.text("host") == "h.example"
    assert connection.text("port") == "22"
    assert connection.text("api_key") == "changed-later"
    assert connection.text("password") == "from-file"
    assert connection.text("user", "root") == "root"
    with pytest.raises(NotFound, match="user"):
        connection.text("user")


async def test_pr5_a_keyring_reference_asks_the_keyring(monkeypatch):
    ring = types.ModuleType("keyring")
    ring.get_password = lambda service, user: CANARY if (service, user) == ("a/b", "me") else None
    monkeypatch.setitem(sys.modules, "keyring", ring)
    connections = Connections({"c": {"token": "keyring:a/b/me"}, "d": {"token": "keyring:x/y"}})

    assert (await connections.resolve("c")).text("token") == CANARY
    with pytest.raises(Unauthorized, match="not in the keyring"):
        await connections.resolve("d")


async def test_pr5_the_keyring_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)

    with pytest.raises(Unauthorized, match=r"pinfold\[keyring\]"):
        await Connections({"c": {"token": "keyring:a/b"}}).resolve("c")


@pytest.mark.parametrize(
    "reference",
    ["env:NOT_SET_ANYWHERE", "file:/no/such/file", "keyring:nothing"],
)
async def test_pr5_a_reference_that_leads_to_nothing_says_which(reference):
    with pytest.raises(Unauthorized) as caught:
        await Connections({"c": {"token": reference}}).resolve("c")

    assert reference in str(caught.value)
    assert caught.value.details["key"] == "token"


@pytest.mark.parametrize(
    "table",
    [{"password": "hunter2"}, {"host": "https://u:pw@h.example"}, {"x": "ghp_" + "a" * 36}],
    ids=["name", "shape", "token"],
)
def test_pr5_a_credential_in_plain_is_refused_without_repeating_it(table):
    with pytest.raises(SpecInvalid) as caught:
        Connections({"c": table})

    (value,) = table.values()
    assert value not in str(caught.value)
    assert caught.value.faults[0].pointer.startswith("/connections/c/")


@pytest.mark.parametrize("table", [{"x": 1.5}, {"x": None}, {"x": ["a"]}, {"x": "env:"}])
def test_a_connections_values_are_text_or_references(table):
    with pytest.raises(SpecInvalid):
        Connections({"c": table})


async def test_an_unknown_connection_says_what_there_is():
    with pytest.raises(NotFound, match="registered: a, b"):
        await Connections({"b": {}, "a": {}}).resolve("c")


async def test_pr1_an_embedders_hook_is_asked_first(env):
    class Vault:
        @hookimpl
        def pinfold_connection(self, name):
            return {"host": "v", "token": "env:TOY_KEY"} if name == "c" else None

    hooks = Hooks()
    hooks.register(Vault())
    connections = Connections({"c": {"host": "file's"}, "d": {"host": "d"}}, hook=hooks.connection)

    assert (await connections.resolve("c")).text("token") == CANARY
    assert (await connections.resolve("d")).text("host") == "d"


def test_pr5_a_secret_shows_itself_only_when_asked():
    secret = Secret(CANARY, "env:X")

    assert secret.reveal() == CANARY
    for shown in (
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret}",
        repr([secret]),
        repr({"a": secret}),
    ):
        assert CANARY not in shown
    assert CANARY not in repr(Connection(id="c", values={"token": secret}))
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"a": secret})


@pytest.mark.parametrize("opened", [to_json, attrs.asdict, vars, lambda s: pickle.dumps([s])])
def test_pr5_nothing_that_turns_data_into_text_opens_a_secret(opened):
    secret = Secret(CANARY, "env:X")

    try:
        shown = repr(opened(secret))
    except (TypeError, attrs.exceptions.NotAnAttrsClassError):
        return
    assert CANARY not in shown


@pytest.mark.parametrize(
    "secret",
    [
        "canary-a-part",
        "canary-a-part-of-another",
        "canary of\ntwo lines",
        'it\'s "quoted"\\',
        "w/ pä@:+?",
    ],
)
def test_pr5_a_secret_is_found_in_each_form_that_texts_give_it(secret):
    for value in ("canary-a-part", "canary-a-part-of-another", secret):
        Secret(value, "env:X")

    for shown in (
        secret,
        repr(secret),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret),
        quote(secret, safe=""),
    ):
        assert "[redacted]" in redact(shown)
        assert secret not in redact(shown)
        assert redact(shown).strip(QUOTES) == "[redacted]"


@pytest.mark.parametrize("table", [{"password": "plain-canary-1"}, {"x": "ghp_" + "a1" * 12}])
async def test_pr5_a_credential_that_a_hook_gives_in_plain_is_a_secret_too(table):
    connection = await Connections(hook=lambda _: table).resolve("c")

    ((key, value),) = connection.values.items()
    assert isinstance(value, Secret)
    assert connection.text(key) == table[key]
    assert redact(table[key]) == "[redacted]"


@pytest.mark.parametrize("answer", [["x"], 3, {"x": None}, {"x": b"x"}, {3: "x"}, {"x": 1.5}])
async def test_pr2_a_hook_that_answers_something_else_is_named_for_it(answer):
    with pytest.raises(Internal, match="connection 'c'"):
        await Connections(hook=lambda _: answer).resolve("c")


def test_pr5_what_was_revealed_is_taken_out_of_any_text():
    Secret(CANARY, "env:X")

    assert redact(f"a {CANARY} b {CANARY}") == "a [redacted] b [redacted]"
    assert scrub({"k": [CANARY, {CANARY: 1}], "n": 3}) == {
        "k": ["[redacted]", {"[redacted]": 1}],
        "n": 3,
    }
    error = Unavailable(f"bad {CANARY}", hint=CANARY, details={"url": f"x{CANARY}"})
    error.__cause__ = RuntimeError(CANARY)
    shown = (
        repr(scrub_error(error)) + str(error) + json.dumps(error.to_dict()) + repr(error.__cause__)
    )
    assert CANARY not in shown


# --- canaries, end to end ------------------------------------------------------------------


class Leaky(ToyProvider):
    """A provider that puts its credential into everything that it can reach."""

    async def create(self, pinned, ctx):
        connection = await ctx.connect("vendor")
        self.key = connection.text("api_key")
        return await super().create(pinned, ctx)


async def _fails(kind, key):
    raise kind(f"vendor said: bad key {key}")


@pytest.mark.parametrize("kind", [RuntimeError, Unavailable, ValueError])
async def test_pr5_no_secret_in_errors_events_records_logs_or_argv(env, kind, caplog):
    told = []

    class Listener:
        @hookimpl
        def pinfold_event(self, event):
            told.append(event)

        @hookimpl
        def pinfold_audit(self, record):
            told.append(record)

    hooks = Hooks()
    hooks.register(Listener())
    provider = Leaky(run=lambda *_: _fails(kind, provider.key))
    runtime = Runtime(
        catalog=Catalog([provider]),
        hooks=hooks,
        connections=Connections({"vendor": {"api_key": "env:TOY_KEY"}}),
    )
    spec = {"target": {"kind": "container", "connection_id": "vendor"}}

    with caplog.at_level(logging.DEBUG):
        async with pinfold.open(spec, runtime=runtime) as box:
            with pytest.raises((Unavailable, Internal)) as caught:
                await box.exec(["true"])
            await box.files.write("/workspace/x", CANARY.encode())
            view = await box.view()

    import traceback

    shown = "".join(traceback.format_exception(caught.value))
    assert "vendor said" in shown
    assert "[redacted]" in shown
    everything = shown + repr(told) + repr(view) + caplog.text + json.dumps(view.to_dict())
    everything += repr(box.pinned) + repr(await box.events()) + repr(box)
    assert CANARY not in everything


async def test_pr5_a_failed_create_shows_no_secret_either(env):
    class Fails(Leaky):
        async def create(self, pinned, ctx):
            instance = await super().create(pinned, ctx)
            raise RuntimeError(f"refused {self.key} for {instance.ref.id}")

    provider = Fails()
    runtime = Runtime(
        catalog=Catalog([provider]),
        hooks=Hooks(),
        connections=Connections({"vendor": {"api_key": "env:TOY_KEY"}}),
    )

    with pytest.raises(Internal) as caught:
        await pinfold.open({"target": {"kind": "container"}}, runtime=runtime)

    import traceback

    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert provider.alive == {}


async def test_ev2_variables_are_audited_by_name_never_by_value(env):
    records = []

    class Listener:
        @hookimpl
        def pinfold_audit(self, record):
            records.append(record)

    async def ok(request, sink):
        return ExecResult(exit_code=0)

    hooks = Hooks()
    hooks.register(Listener())
    runtime = Runtime(catalog=Catalog([ToyProvider(run=ok)]), hooks=hooks)

    async with pinfold.open({"target": {"kind": "container"}}, runtime=runtime) as box:
        await box.exec(["x"], env={"API": CANARY}, stdin=CANARY.encode())
        await box.files.write("/workspace/f", CANARY.encode())
        await box.files.read("/workspace/f")

    assert records[0].data["env_names"] == ["API"]
    assert CANARY not in repr(records)
    assert [record.data.get("size") for record in records[1:]] == [len(CANARY), len(CANARY)]


async def test_pr5_a_spec_in_code_finds_the_projects_connections(env, tmp_path, monkeypatch):
    (tmp_path / "pinfold.toml").write_text('[connections.c]\ntoken = "env:TOY_KEY"\n')
    monkeypatch.setenv("PINFOLD_CONFIG", str(tmp_path / "pinfold.toml"))
    found = []

    class Connects(ToyProvider):
        async def create(self, pinned, ctx):
            found.append((await ctx.connect(ctx.connection_id)).text("token"))
            return await super().create(pinned, ctx)

    installed = functools.partial(Runtime, catalog=Catalog([Connects()]), hooks=Hooks())
    monkeypatch.setattr("pinfold.sandbox._open.Runtime", installed)
    spec = {"target": {"kind": "container", "provider": "toy", "connection_id": "c"}}

    async with pinfold.open(spec):
        assert found == [CANARY]
    spec["target"]["connection_id"] = "other"
    with pytest.raises(NotFound, match="registered: c"):
        await pinfold.open(spec)
