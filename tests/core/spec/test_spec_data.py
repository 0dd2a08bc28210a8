"""SP-0..SP-4: what a specification may say, read and written by the one converter."""

from __future__ import annotations

import json
import typing
from enum import StrEnum

import attrs
import jsonschema
import pytest

from pinfold.errors import SpecInvalid
from pinfold.spec import (
    UNSET,
    Containment,
    HostPattern,
    JsonObject,
    Kind,
    Lifecycle,
    Limits,
    Network,
    PinnedSpec,
    ResolvedSpec,
    Spec,
    Target,
    canonical_json,
    freeze,
    from_json,
    has_secret_name,
    has_secret_shape,
    json_schema,
    read,
    to_canonical,
    to_json,
)

FULL = {
    "target": {
        "kind": "container",
        "provider": "toy",
        "connection_id": "c1",
        "options": {"image": "x", "labels": {"a": [1, 2.5, None, True]}},
    },
    "containment": {
        "level": "isolated",
        "network": {"mode": "allowlist", "allowed_hosts": ["a.example", "*.b.example"]},
        "filesystem": {"writable_roots": ["/data", "/var/cache/x y"]},
        "escalation": "never",
    },
    "durability": "checkpointed",
    "lifecycle": {"idle_after_seconds": 60, "idle_action": "stop"},
    "bootstrap": {"commands": ["make", "make"]},
}


def faults_of(document, cls=Spec):
    _, faults, _ = read(document, cls)
    return {(fault.pointer, fault.code) for fault in faults}


def test_sp0_a_full_spec_comes_back_as_it_was():
    assert to_json(from_json(FULL, Spec)) == FULL


def test_sp0_the_wire_names_are_the_seeds():
    names = {field.name for field in attrs.fields(ResolvedSpec)}

    assert names == {
        "target",
        "containment",
        "durability",
        "lifecycle",
        "bootstrap",
        "template_revision_id",
    }


def test_sp0_null_is_a_choice_for_the_target_and_absence_elsewhere():
    assert from_json({"target": None}, Spec).target is None
    assert from_json({}, Spec).target is UNSET
    assert to_json(Spec(target=None)) == {"target": None}
    assert to_json(Spec()) == {}
    assert to_json(Lifecycle(idle_after_seconds=None)) == {"idle_after_seconds": None}


@pytest.mark.parametrize(
    ("document", "at", "suggestion"),
    [
        ({"targt": {}}, "/targt", "target"),
        ({"target": {"knd": "vfs"}}, "/target/knd", "kind"),
        ({"containment": {"levle": "none"}}, "/containment/levle", "level"),
        (
            {"containment": {"network": {"mode": "deny", "mod": 1}}},
            "/containment/network/mod",
            "mode",
        ),
        (
            {"containment": {"filesystem": {"writable_root": []}}},
            "/containment/filesystem/writable_root",
            "writable_roots",
        ),
        ({"lifecycle": {"idle_actoin": "stop"}}, "/lifecycle/idle_actoin", "idle_action"),
        ({"bootstrap": {"command": []}}, "/bootstrap/command", "commands"),
    ],
)
def test_sp0_unknown_keys_are_errors_at_every_level_with_a_suggestion(document, at, suggestion):
    _, faults, _ = read(document, Spec)

    assert [(f.pointer, f.code, f.suggestion) for f in faults] == [(at, "unknown_key", suggestion)]


@pytest.mark.parametrize(
    ("document", "at"),
    [
        (None, ""),
        ([], ""),
        ("x", ""),
        ({"target": 1}, "/target"),
        ({"target": {"kind": 1}}, "/target/kind"),
        ({"target": {"kind": "VFS"}}, "/target/kind"),
        ({"target": {"provider": ["x"]}}, "/target/provider"),
        ({"target": {"options": []}}, "/target/options"),
        ({"containment": "isolated"}, "/containment"),
        ({"containment": {"level": True}}, "/containment/level"),
        ({"containment": {"network": "deny"}}, "/containment/network"),
        ({"containment": {"network": {}}}, "/containment/network/mode"),
        (
            {"containment": {"filesystem": {"writable_roots": "/x"}}},
            "/containment/filesystem/writable_roots",
        ),
        ({"durability": 3}, "/durability"),
        ({"lifecycle": {"idle_after_seconds": "60"}}, "/lifecycle/idle_after_seconds"),
        ({"lifecycle": {"idle_after_seconds": 60.0}}, "/lifecycle/idle_after_seconds"),
        ({"lifecycle": {"idle_after_seconds": True}}, "/lifecycle/idle_after_seconds"),
        ({"bootstrap": {"commands": {"a": 1}}}, "/bootstrap/commands"),
        ({"bootstrap": {"commands": [1]}}, "/bootstrap/commands/0"),
        ({"bootstrap": {"commands": [None]}}, "/bootstrap/commands/0"),
    ],
)
def test_sp0_wrong_types_are_errors_where_they_are(document, at):
    assert {pointer for pointer, _ in faults_of(document)} == {at}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "out_of_range"),
        (86_401, "out_of_range"),
        (-1, "out_of_range"),
        (1, None),
        (86_400, None),
    ],
)
def test_sp0_idle_after_seconds_is_1_to_86400(value, code):
    found = faults_of({"lifecycle": {"idle_after_seconds": value}})

    assert found == ({("/lifecycle/idle_after_seconds", code)} if code else set())


@pytest.mark.parametrize(
    "host",
    [
        "a",
        "a.example",
        "xn--bcher-kva.example",
        "*.a.example",
        "a-b.c1.example",
        "1.example",
        "x" * 63,
    ],
)
def test_sp1_a_host_pattern_is_a_dns_name_or_a_wildcard_and_one(host):
    assert not faults_of(
        {"containment": {"network": {"mode": "allowlist", "allowed_hosts": [host]}}}
    )


@pytest.mark.parametrize(
    "host",
    [
        "",
        "http://a.example",
        "a.example/x",
        "a.example:443",
        "user@a.example",
        "user:pw@a.example",
        "10.0.0.1",
        "127.1",
        "0x7f000001",
        "127.0x1",
        "0x",
        "::1",
        "[::1]",
        "bücher.example",
        "a.example.",
        "A.example",
        "*",
        "*.",
        "a.*.example",
        "**.a.example",
        "*a.example",
        "-a.example",
        "a-.example",
        "a..example",
        " a.example",
        "a.example\n",
        "a b.example",
        "x" * 64 + ".example",
        ".".join(["abcdefgh"] * 32),
        "*.1.2.3.4",
        "a\0.example",
    ],
)
def test_sp1_nothing_else_is_a_host_pattern_and_the_value_is_not_repeated(host):
    document = {"containment": {"network": {"mode": "allowlist", "allowed_hosts": [host]}}}

    _, faults, _ = read(document, Spec)

    assert [fault.pointer for fault in faults] == ["/containment/network/allowed_hosts/0"]
    assert len(host) < 5 or host.strip() not in str(faults[0])


@pytest.mark.parametrize(
    ("network", "at"),
    [
        ({"mode": "allowlist", "allowed_hosts": []}, "/allowed_hosts"),
        ({"mode": "allowlist"}, "/allowed_hosts"),
        ({"mode": "allowlist", "allowed_hosts": None}, "/allowed_hosts"),
        ({"mode": "deny", "allowed_hosts": ["a.example"]}, "/allowed_hosts"),
        ({"mode": "allow", "allowed_hosts": ["a.example"]}, "/allowed_hosts"),
        (
            {"mode": "allowlist", "allowed_hosts": [f"h{i}.example" for i in range(129)]},
            "/allowed_hosts",
        ),
        ({"mode": "allowlist", "allowed_hosts": ["a.example", "a.example"]}, "/allowed_hosts/1"),
    ],
)
def test_sp1_an_allowlist_has_1_to_128_different_hosts_and_no_other_mode_has_any(network, at):
    assert {p for p, _ in faults_of({"containment": {"network": network}})} == {
        "/containment/network" + at
    }


@pytest.mark.parametrize(
    "root",
    [
        "",
        "/",
        "data",
        "./data",
        "/data/",
        "/a//b",
        "/a/../b",
        "/..",
        "/a/.",
        "/./a",
        "/a\0b",
        "/" + "x" * 4096,
    ],
)
def test_sp4_writable_roots_are_absolute_normal_paths(root):
    document = {"containment": {"filesystem": {"writable_roots": ["/ok", root]}}}

    assert {p for p, _ in faults_of(document)} == {"/containment/filesystem/writable_roots/1"}


def test_sp4_at_most_32_roots():
    def roots(count):
        listed = [f"/r{i}" for i in range(count)]
        return faults_of({"containment": {"filesystem": {"writable_roots": listed}}})

    assert roots(32) == set()
    assert roots(33) == {("/containment/filesystem/writable_roots", "wrong_count")}


@pytest.mark.parametrize("count", [32, 33])
def test_sp0_at_most_32_bootstrap_commands_the_same_one_twice_is_fine(count):
    found = faults_of({"bootstrap": {"commands": ["make"] * count}})

    assert found == (set() if count == 32 else {("/bootstrap/commands", "wrong_count")})


@pytest.mark.parametrize(
    ("command", "fine"),
    [
        ("x" * 8192, True),
        ("x" * 8193, False),
        ("é" * 4096, True),
        ("é" * 4097, False),
        ("", False),
        ("a\0", False),
    ],
)
def test_sp0_a_bootstrap_command_has_1_to_8192_bytes(command, fine):
    assert (faults_of({"bootstrap": {"commands": [command]}}) == set()) is fine


# --- SP-2 ----------------------------------------------------------------------------------

SECRET_NAMES = [
    "api_key",
    "apikey",
    "apiKey",
    "API_KEY",
    "x-api-key",
    "token",
    "access_token",
    "authToken",
    "secret",
    "client.secret",
    "password",
    "db_password",
    "credential",
    "credentials",
    "private_key",
    "privateKey",
    "PASSWORD",
    "my token",
]
INNOCENT_NAMES = [
    "max_tokens",
    "tokens",
    "tokenizer",
    "secretary",
    "keyboard",
    "passwordless",
    "image",
    "apis",
    "public_key",
    "key",
    "description",
]
SECRET_VALUES = [
    "-----BEGIN RSA PRIVATE KEY-----\nMII",
    "ghp_" + "a1B2" * 9,
    "x ghp_" + "a1B2" * 9,
    "sk-" + "a" * 20,
    "key=sk-" + "A1_-" * 6,
    "AKIA" + "A" * 16,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "postgres://user:hunter2@db.example/x",
    "https://:tok@h.example",
]
INNOCENT_VALUES = [
    "task-runner-for-everything-and-more",
    "risk-" + "a" * 30,
    "sk-short",
    "disk-" + "a" * 24,
    "https://example.com/a:b@c",
    "https://user@example.com",
    "akia" + "a" * 16,
    "ghp",
    "eyJ",
    "git@h.example:x/y",
    "a://b",
    "10:20@30",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_sp2_a_credential_word_as_a_segment_of_a_key_is_refused(name):
    assert has_secret_name(name)
    found = faults_of({"target": {"options": {"deep": [{name: "CANARY-1f2e"}]}}})
    assert [code for _, code in found] == ["secret"]


@pytest.mark.parametrize("name", INNOCENT_NAMES)
def test_sp2_innocent_keys_are_fine(name):
    assert not has_secret_name(name)
    assert not faults_of({"target": {"options": {name: 3}}})


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_sp2_values_with_the_shape_of_a_key_are_refused_and_never_repeated(value):
    assert has_secret_shape(value)
    for document in (
        {"target": {"options": {"a": [value]}}},
        {"target": {"options": {value: 1}}},
        {"bootstrap": {"commands": [f"use {value}"]}},
        {value: 1},
        {"target": {value: 1}},
        {"durability": value},
        {"containment": {"network": {"mode": "allowlist", "allowed_hosts": [f"{value}/"]}}},
    ):
        _, faults, _ = read(document, Spec)
        error = SpecInvalid(faults)
        assert faults
        shown = str(error) + json.dumps(error.to_dict()) + repr(error)
        assert value not in shown
        assert value.split()[-1] not in shown


@pytest.mark.parametrize("value", INNOCENT_VALUES)
def test_sp2_innocent_values_are_fine(value):
    assert not has_secret_shape(value)
    assert not faults_of({"target": {"options": {"a": value}}, "bootstrap": {"commands": [value]}})


# --- options -------------------------------------------------------------------------------


def nested(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("options", "at", "code"),
    [
        ({"a": float("nan")}, "/a", "out_of_range"),
        ({"a": [float("inf")]}, "/a/0", "out_of_range"),
        ({"a": 2**53}, "/a", "out_of_range"),
        ({"a": -(10**400)}, "/a", "out_of_range"),
        ({"a": "\ud800"}, "/a", "bad_text"),
        ({"\udfff": 1}, "", "bad_text"),
        ({1: 2}, "", "wrong_type"),
        ({"a": b"x"}, "/a", "wrong_type"),
        ({"a": {1, 2}}, "/a", "wrong_type"),
        ({"a": "x" * (32 * 1024)}, "", "too_large"),
        ({"a": 33 * 1024 * "x"}, "", "too_large"),
        (nested(40), "/a" * 32, "too_deep"),
    ],
)
def test_sp0_options_are_plain_json_of_at_most_32_kib(options, at, code):
    assert faults_of({"target": {"options": options}}) == {("/target/options" + at, code)}


def test_sp0_options_of_exactly_32_kib_are_fine():
    room = 32 * 1024 - len(canonical_json({"a": ""}))

    assert not faults_of({"target": {"options": {"a": "x" * room}}})
    assert faults_of({"target": {"options": {"a": "x" * (room + 1)}}})


def test_sp0_options_that_hold_themselves_are_refused():
    loop: dict = {}
    loop["a"] = loop

    assert {code for _, code in faults_of({"target": {"options": loop}})} == {"too_deep"}


# --- making them in Python -----------------------------------------------------------------


def test_sp0_words_may_be_given_as_text():
    target = Target(kind="vfs")

    assert target.kind is Kind.VFS
    assert Containment(level="native").level == "native"


@pytest.mark.parametrize(
    "make",
    [  # each a call that must not come to be
        lambda: Target(kind="nope"),
        lambda: Network(mode="allowlist"),
        lambda: Network(mode="allowlist", allowed_hosts=[HostPattern("http://x")]),
        lambda: Lifecycle(idle_after_seconds=0),
        lambda: Target(options={"password": "x"}),
        lambda: Target(provider="no spaces"),
    ],
    ids=["kind", "no hosts", "host", "idle", "secret", "name"],
)
def test_sp0_what_is_made_in_python_is_held_to_the_same(make):
    with pytest.raises(ValueError, match="/"):
        make()


def test_sp0_specs_are_frozen_hashable_and_share_nothing_with_their_source():
    options = {"a": {"b": [1]}}
    target = Target(kind="vfs", options=options)
    options["a"]["b"].append(2)

    assert target.options == {"a": {"b": [1]}}
    assert hash(target) == hash(Target(kind="vfs", options={"a": {"b": [1]}}))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        target.kind = Kind.HOST
    with pytest.raises(TypeError):
        target.options["a"] = 1


def test_json_objects_behave_as_the_mappings_they_are():
    import pickle

    value = freeze({"b": [1, {"c": 2}], "a": None})

    assert list(value) == ["a", "b"]
    assert value == {"a": None, "b": [1, {"c": 2}]}
    assert value != {"a": None}
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
    assert isinstance(value["b"][1], JsonObject)


def test_sp0_what_is_read_has_the_types_that_the_classes_say():
    """Whatever is read from JSON holds words as words, at every depth."""

    def check(value):
        hints = typing.get_type_hints(type(value))
        for field in attrs.fields(type(value)):
            item, hint = getattr(value, field.name), hints[field.name]
            if attrs.has(type(item)):
                check(item)
            kinds = [kind for kind in (hint, *typing.get_args(hint)) if isinstance(kind, type)]
            words = [kind for kind in kinds if issubclass(kind, StrEnum)]
            if words and item is not None:
                assert type(item) in words, field.name

    check(from_json(FULL, Spec))
    check(from_json(FULL, ResolvedSpec))


# --- SP-3 ----------------------------------------------------------------------------------


def test_sp3_the_canonical_form_is_sorted_tight_utf8():
    assert (
        canonical_json({"b": [1, 2.5, True, None], "a": "é\n"})
        == '{"a":"é\\n","b":[1,2.5,true,null]}'.encode()
    )


def test_sp3_a_digest_is_the_same_on_every_platform():
    spec = from_json(
        {
            "target": None,
            "containment": {"level": "none", "network": {"mode": "deny"}, "escalation": "never"},
            "durability": "none",
            "lifecycle": {"idle_after_seconds": 180, "idle_action": "stop"},
        },
        ResolvedSpec,
    )

    assert to_canonical(PinnedSpec(spec=spec)) == (
        b'{"contract":"1.0","pins":{},"spec":{"bootstrap":{"commands":[]},"containment":'
        b'{"escalation":"never","filesystem":{"writable_roots":[]},"level":"none","network":'
        b'{"mode":"deny"}},"durability":"none","lifecycle":{"idle_action":"stop",'
        b'"idle_after_seconds":180},"target":null},"unpinned":{}}'
    )
    assert PinnedSpec(spec=spec).digest == (
        "sha256:cb5ad9cc187d04d03acfdab7b62af8095ed9e2f6e796433fea83531f219acaa7"
    )


def test_sp3_a_field_added_later_is_left_out_while_it_has_its_default():
    @attrs.frozen(kw_only=True)
    class Old:
        a: int = 1

    @attrs.frozen(kw_only=True)
    class New:
        a: int = 1
        b: tuple[str, ...] = attrs.field(default=(), metadata={"since": "1.1"})
        c: dict = attrs.field(factory=dict, metadata={"since": "1.1"})

    assert to_canonical(New()) == to_canonical(Old())
    assert to_canonical(New(b=("x",))) != to_canonical(Old())
    assert to_json(New()) == {"a": 1, "b": [], "c": {}}


# --- 1b ------------------------------------------------------------------------------------


def test_section_1b_the_defaults_and_limits_are_those_of_the_table():
    from pinfold import spec

    mib = 1 << 20
    assert (120, 2, 3, 2, 120, 600, 180, mib) == (
        spec.EXEC_TIMEOUT_SECONDS,
        spec.TERM_GRACE_SECONDS,
        spec.RETURN_GRACE_SECONDS,
        spec.PROBE_TIMEOUT_SECONDS,
        spec.CREATE_TIMEOUT_SECONDS,
        spec.BOOTSTRAP_TIMEOUT_SECONDS,
        spec.IDLE_AFTER_SECONDS,
        spec.OUTPUT_CAP_BYTES,
    )
    assert str(spec.WORKSPACE) == "/workspace"
    limits = Limits()
    assert (limits.argv_element_bytes, limits.stdin_bytes, limits.read_bytes) == (
        131_071,
        16 * mib,
        32 * mib,
    )


# --- the schema ----------------------------------------------------------------------------

SCHEMA = jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_a_sound_one():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.Draft202012Validator.check_schema(json_schema(PinnedSpec))


@pytest.mark.parametrize(
    "document",
    [
        FULL,
        {"target": None},
        {"lifecycle": {"idle_after_seconds": None}},
        {"targt": 1},
        {"target": {"kind": "x"}},
        {"target": {"options": 1}},
        {"containment": {"network": {"mode": "allowlist"}}},
        {"containment": {"network": {"mode": "deny", "allowed_hosts": ["a.example"]}}},
        {"containment": {"network": {"mode": "allowlist", "allowed_hosts": ["a.example:1"]}}},
        {"containment": {"network": {"mode": "allowlist", "allowed_hosts": ["a.b", "a.b"]}}},
        {"containment": {"filesystem": {"writable_roots": ["/a/../b"]}}},
        {"lifecycle": {"idle_after_seconds": 86_401}},
        {"bootstrap": {"commands": ["x"] * 33}},
        {"bootstrap": {"commands": [""]}},
    ],
)
def test_the_schema_and_the_converter_judge_alike(document):
    assert SCHEMA.is_valid(document) is (not faults_of(document))


@pytest.mark.parametrize("key", ["provider", "connection_id"])
def test_sp2_a_credential_pasted_for_a_name_is_refused_without_repeating_it(key):
    secret = "ghp_" + "Ab1" * 12

    _, faults, _ = read({"target": {"kind": "container", key: secret}}, Spec)

    assert [(fault.pointer, fault.code) for fault in faults] == [(f"/target/{key}", "secret")]
    assert secret not in str(faults)
