"""RS-1..RS-9 and section 1's defaults: from layers to a complete spec, or to every fault."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault
from pinfold.plugins import Catalog, TemplateRevision
from pinfold.provider import Pins, Supports
from pinfold.resolve import Layer, pin, resolve
from pinfold.spec import Kind, ResolvedSpec, Spec, Target, from_json, to_canonical, to_json
from tests.core.support import VFS, ToyProvider, catalog, vfs_provider

TOY = {"kind": "container", "provider": "toy"}


def faults(layers, plugins=None, **kwargs) -> list[Fault]:
    with pytest.raises(SpecInvalid) as caught:
        resolve(layers, plugins or catalog(), **kwargs)
    return list(caught.value.faults)


def where(found: list[Fault]) -> set[tuple[str, str]]:
    return {(fault.pointer, fault.code) for fault in found}


# --- section 1: the defaults by kind --------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "level", "network", "durability", "idle_action"),
    [
        ("host", "none", "allow", "none", "stop"),
        ("machine", "none", "allow", "none", "stop"),
        ("vfs", "isolated", "deny", "checkpointed", "checkpoint_and_stop"),
        ("container", "isolated", "deny", "checkpointed", "checkpoint_and_stop"),
        ("managed", "isolated", "allow", "provider_snapshot", "stop"),
    ],
)
def test_sp0_each_kind_has_the_contracts_defaults(kind, level, network, durability, idle_action):
    everything = ToyProvider(
        "all",
        tuple(Kind),
        containment=[
            Supports(level=name, networks=("deny", "allowlist", "allow"))
            for name in ("none", "native", "isolated")
        ],
    )
    connection = {"connection_id": "c"} if kind == "machine" else {}

    spec = resolve({"target": {"kind": kind, **connection}}, Catalog([everything]))

    assert to_json(spec) == {
        "target": {
            "kind": kind,
            "provider": "all",
            **connection,
            "options": {"cpus": 1.0, "max_tokens": 10, "labels": {}, "fast": False},
        },
        "containment": {
            "level": level,
            "network": {"mode": network},
            "filesystem": {"writable_roots": []},
            "escalation": "never",
        },
        "durability": durability,
        "lifecycle": {"idle_after_seconds": 180, "idle_action": idle_action},
        "bootstrap": {"commands": []},
    }


def test_sp0_a_null_target_is_files_and_checkpoints_only():
    spec = resolve({"target": None}, Catalog([]))

    assert spec.target is None
    assert to_json(spec.containment)["level"] == "none"
    assert to_json(spec.containment)["network"] == {"mode": "deny"}
    assert spec.durability == "checkpointed"
    assert resolve({"target": None}, Catalog([]), ephemeral=True).durability == "none"


def test_sp0_what_a_null_target_cannot_have_is_refused():
    found = faults(
        {
            "target": None,
            "containment": {
                "level": "isolated",
                "network": {"mode": "allow"},
                "filesystem": {"writable_roots": ["/x"]},
                "escalation": "auto",
            },
            "durability": "provider_snapshot",
            "bootstrap": {"commands": ["x"]},
        }
    )

    assert {fault.pointer for fault in found} == {
        "/containment/level",
        "/containment/network/mode",
        "/containment/filesystem/writable_roots",
        "/containment/escalation",
        "/durability",
        "/bootstrap/commands",
    }


# --- the layers ------------------------------------------------------------------------------


def test_rs_stronger_layers_win_field_by_field():
    spec = resolve(
        [
            Layer({"durability": "none", "lifecycle": {"idle_after_seconds": 10}}, "deployment"),
            Layer({"target": TOY, "containment": {"network": {"mode": "allow"}}}, "template"),
            Layer({"lifecycle": {"idle_action": "keep_running"}}, "profile"),
            Layer({"containment": {"filesystem": {"writable_roots": ["/x"]}}}, "session"),
        ],
        catalog(),
    )

    assert spec.durability == "none"
    assert to_json(spec.lifecycle) == {"idle_after_seconds": 10, "idle_action": "keep_running"}
    assert to_json(spec.containment)["network"] == {"mode": "allow"}
    assert spec.containment.filesystem.writable_roots == ("/x",)


def test_rs_a_layer_with_a_kind_or_provider_replaces_the_whole_target():
    below = {"target": {**TOY, "options": {"cpus": 4}, "connection_id": "c"}}

    by_kind = resolve([below, {"target": {"kind": "vfs"}}], catalog())
    by_both = resolve([below, {"target": TOY}], catalog())

    assert to_json(by_kind.target)["provider"] == "bashkit"
    assert by_both.target.options["cpus"] == 1.0
    assert by_both.target.connection_id is None


def test_rs_options_and_network_are_replaced_whole():
    spec = resolve(
        [
            {
                "target": {**TOY, "options": {"cpus": 4, "fast": True}},
                "containment": {"network": {"mode": "allowlist", "allowed_hosts": ["a.example"]}},
            },
            {"target": {"options": {"cpus": 2}}, "containment": {"network": {"mode": "deny"}}},
        ],
        catalog(),
    )

    assert dict(spec.target.options) == {"cpus": 2.0, "max_tokens": 10, "labels": {}, "fast": False}
    assert to_json(spec.containment.network) == {"mode": "deny"}


def test_rs_a_null_target_above_takes_the_compute_away():
    assert resolve([{"target": TOY}, {"target": None}], catalog()).target is None


def test_rs_null_parts_are_no_opinion():
    spec = resolve(
        [{"target": TOY, "durability": "none"}, {"containment": None, "durability": None}],
        catalog(),
    )

    assert spec.durability == "none"


def test_rs3_a_template_revision_is_pinned_and_no_author_sets_it():
    revision = TemplateRevision(name="t", revision_id="tr_1", spec={"target": TOY})

    spec = resolve([Layer.of_template(revision), {"durability": "none"}], catalog())

    assert spec.template_revision_id == "tr_1"
    assert where(faults({"target": TOY, "template_revision_id": "tr_1"})) == {
        ("/template_revision_id", "not_allowed")
    }


# --- RS-1, RS-2 ------------------------------------------------------------------------------


def test_rs1_nothing_is_left_to_be_decided():
    def decided(value):
        assert value is not None
        for field in attrs.fields(type(value)):
            item = getattr(value, field.name)
            if attrs.has(type(item)):
                decided(item)

    decided(resolve({"target": TOY}, catalog()))


def test_rs2_a_resolved_spec_resolves_to_itself_also_through_json():
    spec = resolve(
        {"target": TOY, "lifecycle": {"idle_after_seconds": None, "idle_action": "keep_running"}},
        catalog(),
    )

    assert resolve(spec, catalog()) == spec
    assert resolve(to_json(spec), catalog()) == spec
    assert from_json(to_json(spec), ResolvedSpec) == spec
    nothing = resolve({"target": None}, catalog())
    assert resolve(to_json(nothing), catalog()) == nothing


def test_rs2_equal_layers_give_equal_bytes_whatever_the_order_of_keys():
    one = resolve({"target": {"kind": "vfs"}, "durability": "none"}, catalog())
    two = resolve({"durability": "none", "target": {"kind": "vfs"}}, catalog())

    assert to_canonical(one) == to_canonical(two)


def test_rs_specs_made_in_python_resolve_as_documents_do():
    assert resolve(Spec(target=Target(kind="vfs")), catalog()) == resolve(
        {"target": {"kind": "vfs"}}, catalog()
    )


async def test_rs2_only_pin_asks_the_provider(anyio_backend):
    provider = ToyProvider()
    provider.pins = Pins(pins={"image_digest": "sha256:1"}, unpinned={"host_key": "none yet"})
    plugins = Catalog([provider])

    spec = resolve({"target": TOY}, plugins)
    pinned = await pin(spec, plugins)

    assert pinned.spec == spec
    assert to_json(pinned)["pins"] == {"image_digest": "sha256:1"}
    assert to_json(pinned)["unpinned"] == {"host_key": "none yet"}
    assert pinned.provider == "toy"
    provider.pins = Pins(pins={"image_digest": "sha256:2"})
    assert (await pin(spec, plugins)).digest != pinned.digest


# --- choosing a provider -----------------------------------------------------------------


def test_sp0_a_provider_is_implied_where_its_kind_has_one():
    assert resolve({"target": {"kind": "vfs"}}, catalog()).target.provider == "bashkit"


def test_sp0_several_providers_of_a_kind_must_be_told_apart():
    plugins = Catalog([ToyProvider(), ToyProvider("other")])

    (fault,) = faults({"target": {"kind": "container"}}, plugins)

    assert (fault.pointer, fault.code) == ("/target/provider", "required")
    assert fault.allowed == ("other", "toy")


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ({"kind": "container"}, "pip install pinfold-docker"),
        ({"kind": "container", "provider": "docker"}, "pip install pinfold-docker"),
        ({"kind": "managed", "provider": "daytona"}, "pip install pinfold-daytona"),
        ({"kind": "machine", "connection_id": "c"}, "pip install pinfold-ssh-machine"),
    ],
)
def test_rs5_a_provider_that_is_not_installed_says_what_to_install(target, hint):
    (fault,) = faults({"target": target}, Catalog([vfs_provider()]))

    assert (fault.pointer, fault.code, fault.hint) == ("/target/provider", "not_installed", hint)


def test_rs5_a_misspelt_provider_is_suggested():
    (fault,) = faults({"target": {"kind": "container", "provider": "tooy"}})

    assert (fault.pointer, fault.suggestion) == ("/target/provider", "toy")


def test_rs4_no_other_provider_ever_answers():
    (fault,) = faults({"target": {"kind": "vfs", "provider": "toy"}})

    assert (fault.pointer, fault.code, fault.allowed) == (
        "/target/kind",
        "conflict",
        ("container",),
    )


def test_pr2_a_broken_provider_is_refused_with_its_own_error():
    (fault,) = faults({"target": TOY}, Catalog([ToyProvider(contract=">=2,<3")]))

    assert (fault.pointer, fault.code) == ("/target/provider", "provider_incompatible")


def test_pr2_a_provider_that_fails_to_judge_is_at_fault_itself():
    provider = ToyProvider()
    provider.check = lambda _: 1 / 0

    (fault,) = faults({"target": TOY}, Catalog([provider]))

    assert (fault.pointer, fault.code) == ("/target/provider", "provider_broken")


def test_rs5_a_providers_own_checks_count():
    provider = ToyProvider()
    provider.check = lambda _: [Fault(pointer="/target/options/image", code="bad", message="m")]

    (fault,) = faults(
        [Layer({"target": {**TOY, "options": {"image": "x"}}}, "profile")], Catalog([provider])
    )

    assert (fault.pointer, fault.layer) == ("/target/options/image", "profile")


def test_sp0_options_are_read_by_the_providers_class():
    found = faults({"target": {**TOY, "options": {"cpu": 1, "cpus": "2", "fast": 1}}})

    assert where(found) == {
        ("/target/options/cpu", "unknown_key"),
        ("/target/options/cpus", "wrong_type"),
        ("/target/options/fast", "wrong_type"),
    }
    assert next(f for f in found if f.code == "unknown_key").suggestion == "cpus"


def test_sp0_a_required_option_is_asked_for():
    @attrs.frozen(kw_only=True)
    class Needs:
        image: str

    plugins = Catalog([ToyProvider(options=Needs)])

    assert where(faults({"target": TOY}, plugins)) == {("/target/options/image", "required")}
    assert resolve({"target": {**TOY, "options": {"image": "x"}}}, plugins).target.options == {
        "image": "x"
    }


# --- RS-9: the table -----------------------------------------------------------------------

WEAK = ToyProvider(
    "weak",
    ("container", "machine", "managed"),
    capabilities=attrs.evolve(
        VFS,
        network_enforced=False,
        portable_checkpoint=False,
    ),
    containment=(Supports(level="native", networks=("allow", "deny")),),
    durabilities=("none", "checkpointed"),
)
BASE: dict[str, Any] = {
    "target": {"kind": "container", "provider": "weak"},
    "durability": "none",
    "containment": {"level": "native", "network": {"mode": "allow"}},
}


def changed(**parts):
    return {**BASE, **parts}


@pytest.mark.parametrize(
    ("document", "at"),
    [
        (changed(lifecycle={"idle_action": "checkpoint_and_stop"}), "/lifecycle/idle_action"),
        (changed(durability="checkpointed", lifecycle={"idle_action": "stop"}), "/durability"),
        (changed(durability="provider_snapshot"), "/durability"),
        (
            changed(containment={"level": "native", "network": {"mode": "deny"}}),
            "/containment/network/mode",
        ),
        (
            changed(containment={"level": "isolated", "network": {"mode": "allow"}}),
            "/containment/level",
        ),
        (
            changed(containment={"level": "none", "network": {"mode": "allow"}}),
            "/containment/level",
        ),
        (
            changed(containment={**BASE["containment"], "filesystem": {"writable_roots": ["/x"]}}),
            "/containment/filesystem/writable_roots",
        ),
        (
            changed(containment={**BASE["containment"], "escalation": "auto"}),
            "/containment/escalation",
        ),
        (changed(bootstrap={"commands": ["x"]}), "/bootstrap/commands"),
        (changed(lifecycle={"idle_after_seconds": None}), "/lifecycle/idle_after_seconds"),
        (changed(target={"kind": "machine", "provider": "weak"}), "/target/connection_id"),
    ],
)
def test_rs9_each_rule_of_the_table_is_one_fault(document, at):
    assert resolve(BASE, Catalog([WEAK]))

    assert [fault.pointer for fault in faults(document, Catalog([WEAK]))] == [at]


def test_rs9_an_allowlist_needs_a_provider_that_offers_it_and_wildcards_one_that_can():
    def hosts(*names):
        return {
            "target": {"kind": "vfs"},
            "containment": {"network": {"mode": "allowlist", "allowed_hosts": list(names)}},
        }

    assert resolve(hosts("a.example"), catalog())
    assert where(faults(hosts("*.a.example"))) == {
        ("/containment/network/allowed_hosts", "conflict")
    }


@pytest.mark.parametrize("kind", ["host", "vfs"])
def test_sp0_host_and_vfs_take_no_connection(kind):
    assert [f.pointer for f in faults({"target": {"kind": kind, "connection_id": "c"}})] == [
        "/target/connection_id"
    ]


@pytest.mark.parametrize("asked", ["checkpointed", "provider_snapshot"])
def test_ephemeral_sandboxes_keep_nothing_and_asking_for_more_is_a_fault(asked):
    assert resolve({"target": TOY}, catalog(), ephemeral=True).durability == "none"
    assert resolve({"target": TOY, "durability": "none"}, catalog(), ephemeral=True)

    assert where(faults({"target": TOY, "durability": asked}, ephemeral=True)) == {
        ("/durability", "ephemeral")
    }


# --- RS-5 ------------------------------------------------------------------------------------


def test_rs5_twelve_different_faults_are_twelve_faults():
    found = faults(
        {
            "target": {
                "kind": "vfs",
                "provider": "bashkit",
                "connection_id": "c",
                "options": {"cpu": 1, "cpus": "x", "token": "t"},
            },
            "containment": {
                "level": "native",
                "network": {"mode": "allow"},
                "filesystem": {"writable_roots": ["relative"]},
                "escalation": "atuo",
            },
            "durability": "provider_snapshot",
            "lifecycle": {"idle_after_seconds": 0, "idle_action": "checkpoint_and_stop"},
            "bootstrap": {"commands": ["x"]},
            "unknown": 1,
        }
    )

    assert where(found) == {
        ("/unknown", "unknown_key"),
        ("/target/connection_id", "conflict"),
        ("/target/options/token", "secret"),
        ("/containment/level", "unsupported"),
        ("/containment/network/mode", "unsupported"),
        ("/containment/filesystem/writable_roots/0", "bad_format"),
        ("/containment/escalation", "not_allowed"),
        ("/durability", "unsupported"),
        ("/lifecycle/idle_after_seconds", "out_of_range"),
        ("/lifecycle/idle_action", "unsupported"),
        ("/bootstrap/commands", "conflict"),
        ("/target/options/cpu", "unknown_key"),
        ("/target/options/cpus", "wrong_type"),
    }
    assert len(found) == 13
    assert all(fault.message for fault in found)


def test_rs5_one_mistake_is_one_fault_not_what_follows_from_it():
    assert where(faults({"target": {"kind": "vfs"}, "durability": "checkpoined"})) == {
        ("/durability", "not_allowed")
    }
    assert where(faults({"target": {"kind": "vsf"}})) == {("/target/kind", "not_allowed")}
    assert where(faults({"target": {"kind": "vfs", "provider": 3}})) == {
        ("/target/provider", "wrong_type")
    }
    assert where(
        faults(
            {
                "target": {"kind": "vfs"},
                "containment": {"network": {"mode": "allowlist", "allowed_hosts": ["A:1"]}},
            }
        )
    ) == {("/containment/network/allowed_hosts/0", "bad_format")}


def test_rs5_a_fault_names_the_layer_that_brought_it():
    found = faults(
        [
            Layer({"target": TOY, "durability": "provider_snapshot"}, "deployment"),
            Layer({"lifecycle": {"idle_action": "checkpoint_and_stop"}}, "profile"),
            Layer({"bogus": 1}, "session"),
        ]
    )

    assert {(f.pointer, f.layer) for f in found} == {
        ("/bogus", "session"),
        ("/lifecycle/idle_action", "profile"),
    }


@pytest.mark.parametrize("document", [{}, {"target": {}}, {"durability": "none"}])
def test_rs5_a_missing_target_is_asked_for(document):
    (fault,) = faults(document)

    assert fault.code == "required"
    assert fault.pointer == ("/target/kind" if document.get("target") == {} else "/target")
    assert fault.allowed
