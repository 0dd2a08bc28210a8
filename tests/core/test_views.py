"""TR-2: the seeds' views, with exactly their field names, from the pinned spec and live state."""

from __future__ import annotations

import attrs
import pytest

import pinfold
from pinfold.errors import SpecInvalid
from pinfold.plugins import Hooks
from pinfold.resolve import resolve
from pinfold.sandbox import Runtime
from pinfold.spec import from_json, to_json
from pinfold.views import EnvironmentView, ResolvedFrom, SandboxView, environment_view
from tests.core.support import catalog

pytestmark = pytest.mark.anyio

# The one example that both seed documents give.
SEED_EXAMPLE = {
    "capabilities": {
        "native_processes": False,
        "network_enforced": True,
        "packages": False,
        "portable_checkpoint": True,
        "ports": False,
        "pty": False,
    },
    "containment": {"level": "isolated", "network": "deny"},
    "durability": "checkpointed",
    "resolved_from": "capabilities",
    "source_capability": "bashkit_shell",
    "target": {"kind": "vfs", "provider": "bashkit"},
}

# The fields of seed 000 `environment` and of seed 001 `sandbox`.
ENVIRONMENT = {
    "capabilities",
    "containment",
    "durability",
    "resolved_from",
    "source_capability",
    "target",
}
SANDBOX = ENVIRONMENT | {
    "current_checkpoint_id",
    "desired_state",
    "generation",
    "last_activity_at",
    "name",
    "observed_state",
    "role",
    "sandbox_id",
    "sandbox_template_revision_id",
    "spec",
}


@pytest.mark.parametrize("cls", [EnvironmentView, SandboxView])
def test_tr2_the_seeds_example_is_read_and_written_unchanged(cls):
    assert from_json(SEED_EXAMPLE, cls).to_dict() == SEED_EXAMPLE


@pytest.mark.parametrize(("cls", "names"), [(EnvironmentView, ENVIRONMENT), (SandboxView, SANDBOX)])
def test_tr2_the_fields_are_the_seeds_and_details(cls, names):
    assert {field.name for field in attrs.fields(cls)} == names | {"details"}


def test_tr2_an_unknown_key_in_a_view_is_an_error():
    with pytest.raises(SpecInvalid):
        from_json({**SEED_EXAMPLE, "capabilites": {}}, EnvironmentView)


def test_rs7_a_spec_shows_what_it_gives_before_anything_runs():
    providers = catalog()
    spec = resolve({"target": {"kind": "vfs"}}, providers)

    view = environment_view(spec, providers.find("bashkit").value.descriptor, ResolvedFrom.SPEC)

    expected = {**SEED_EXAMPLE, "resolved_from": "spec"}
    del expected["source_capability"]
    shown = view.to_dict()
    details = shown.pop("details")
    assert shown == expected
    assert set(details) == {"features", "limits"}


def test_sp0_without_compute_the_target_is_left_out_and_nothing_can_be_done():
    view = environment_view(resolve({"target": None}, catalog()), None, ResolvedFrom.SPEC).to_dict()

    assert "target" not in view
    assert set(view["capabilities"].values()) == {False}
    assert view["containment"] == {"level": "none", "network": "deny"}


async def test_tr2_a_sandbox_shows_its_pinned_spec_and_live_state():
    runtime = Runtime(catalog=catalog(), hooks=Hooks())
    async with pinfold.open({"target": {"kind": "vfs"}}, name="mine", runtime=runtime) as box:
        view = (await box.view()).to_dict()
        environment = (await box.environment()).to_dict()

    assert view["sandbox_id"] == box.id
    assert (view["name"], view["role"], view["generation"]) == ("mine", "primary", 1)
    assert (view["desired_state"], view["observed_state"]) == ("ready", "ready")
    assert view["spec"] == to_json(box.pinned.spec)
    assert view["target"] == {"kind": "vfs", "provider": "bashkit"}
    assert view["resolved_from"] == environment["resolved_from"] == "spec"
    assert set(environment) <= ENVIRONMENT | {"details"}
    assert from_json(view, SandboxView).to_dict() == view
    closed = (await box.view()).to_dict()
    assert (closed["desired_state"], closed["observed_state"]) == ("deleted", "deleted")
