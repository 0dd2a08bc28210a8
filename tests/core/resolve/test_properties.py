"""RS-2 and RS-5 as laws, for documents of any shape."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import SpecInvalid
from pinfold.resolve import resolve
from pinfold.spec import (
    Bootstrap,
    Containment,
    Durability,
    Filesystem,
    IdleAction,
    Kind,
    Level,
    Lifecycle,
    Network,
    PinnedSpec,
    ResolvedSpec,
    Spec,
    Target,
    from_json,
    read,
    to_canonical,
    to_json,
)
from tests.core.support import catalog

CATALOG = catalog()

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.text(alphabet=st.characters(categories=["Cs", "Cc"]), max_size=3)
    | st.binary(max_size=3)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def maybe(value):
    """A value that is right, or anything at all."""
    return value | value | value | ANYTHING


def mapping(**parts):
    """An object with some of its keys, and perhaps a foreign one."""
    known = st.fixed_dictionaries({}, optional=parts)
    foreign = st.dictionaries(st.text(max_size=6), ANYTHING, max_size=1)
    return known | st.builds(lambda a, b: {**b, **a}, known, foreign) | ANYTHING


NETWORK = mapping(
    mode=maybe(st.sampled_from(["deny", "allowlist", "allow"])),
    allowed_hosts=maybe(
        st.lists(maybe(st.sampled_from(["a.example", "*.b.example", "x:1"])), max_size=3)
    ),
)
DOCUMENTS = mapping(
    target=maybe(
        mapping(
            kind=maybe(st.sampled_from(list(map(str, Kind)))),
            provider=maybe(st.sampled_from(["toy", "bashkit", "host", "docker"])),
            connection_id=maybe(st.just("c1")),
            options=maybe(
                st.dictionaries(
                    st.sampled_from(["cpus", "max_tokens", "token", "labels"]), ANYTHING, max_size=3
                )
            ),
        )
    ),
    containment=mapping(
        level=maybe(st.sampled_from(list(map(str, Level)))),
        network=NETWORK,
        filesystem=mapping(
            writable_roots=maybe(
                st.lists(maybe(st.sampled_from(["/data", "rel", "/a/../b"])), max_size=3)
            )
        ),
        escalation=maybe(st.sampled_from(["never", "approval", "auto"])),
    ),
    durability=maybe(st.sampled_from(list(map(str, Durability)))),
    lifecycle=mapping(
        idle_after_seconds=maybe(st.sampled_from([None, 1, 86_400, 0, 86_401])),
        idle_action=maybe(st.sampled_from(list(map(str, IdleAction)))),
    ),
    bootstrap=mapping(commands=maybe(st.lists(maybe(st.text(max_size=5)), max_size=3))),
    template_revision_id=maybe(st.none()),
)


def outcome(layers, **kwargs) -> ResolvedSpec | SpecInvalid:
    try:
        return resolve(layers, CATALOG, **kwargs)
    except SpecInvalid as exc:
        return exc


def shown(result: ResolvedSpec | SpecInvalid) -> Any:
    return to_canonical(result) if isinstance(result, ResolvedSpec) else result.details


def shuffled(value: Any, seed: int) -> Any:
    if isinstance(value, dict):
        items = list(value.items())
        random.Random(seed).shuffle(items)  # noqa: S311 - an order, not a secret
        return {key: shuffled(item, seed) for key, item in items}
    if isinstance(value, list):
        return [shuffled(item, seed) for item in value]
    return value


def place_exists(document: Any, pointer: str) -> bool:
    value = document
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, (list, tuple)) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return False
    return True


@given(st.lists(DOCUMENTS, max_size=3), st.booleans())
def test_no_input_of_any_shape_raises_anything_but_the_typed_error(layers, ephemeral):
    outcome(layers, ephemeral=ephemeral)


@given(DOCUMENTS, st.integers(0, 9))
def test_rs2_resolution_is_deterministic_and_indifferent_to_the_order_of_keys(document, seed):
    assert shown(outcome([document])) == shown(outcome([shuffled(document, seed)]))


@given(DOCUMENTS)
def test_rs2_a_resolved_spec_resolves_to_itself_and_comes_back_from_json(document):
    spec = outcome([document])
    if isinstance(spec, ResolvedSpec):
        text = json.dumps(to_json(spec))
        assert from_json(json.loads(text), ResolvedSpec) == spec
        assert resolve([json.loads(text)], CATALOG) == spec
        assert resolve([spec], CATALOG) == spec
        pinned = PinnedSpec(spec=spec)
        again = from_json(json.loads(json.dumps(to_json(pinned))), PinnedSpec)
        assert (again, again.digest) == (pinned, pinned.digest)


@given(DOCUMENTS)
def test_rs5_every_faults_pointer_points_at_the_offending_place(document):
    result = outcome([document])
    if isinstance(result, SpecInvalid):
        for fault in result.faults:
            missing = fault.code in {"required", "not_installed"}
            at = fault.pointer.rpartition("/")[0] if missing else fault.pointer
            while missing and not place_exists(document, at):
                at = at.rpartition("/")[0]  # what lacks it may be missing itself
            assert place_exists(document, at), fault


@given(DOCUMENTS)
def test_rs5_mending_nothing_but_the_faulty_places_leaves_no_structural_fault(document):
    value, faults, _ = read(document, Spec)
    if value is not None:
        again, left, _ = read(to_json(value), Spec)
        assert (again, left) == (value, ())
    else:
        assert faults


@given(ANYTHING)
def test_the_converter_takes_anything_for_anything(value):
    for cls in (Spec, ResolvedSpec, PinnedSpec):
        made, faults, _ = read(value, cls)
        assert (made is None) <= bool(faults)


CLASSES = (Spec, Target, Containment, Network, Filesystem, Lifecycle, Bootstrap)


@given(st.data())
def test_rs5_specs_made_in_python_of_anything_raise_nothing_but_typed_errors(data):
    def made(cls):
        names = [field.name for field in attrs.fields(cls)]
        parts = data.draw(st.dictionaries(st.sampled_from(names), ANYTHING, max_size=3))
        if cls is Spec:
            for name, inner in (("containment", Containment), ("lifecycle", Lifecycle)):
                if data.draw(st.booleans()):
                    parts[name] = made(inner)
            parts.setdefault("target", None)
        if cls is Network:
            parts.setdefault("mode", "deny")
        return cls(**parts)

    cls = data.draw(st.sampled_from(CLASSES))
    with contextlib.suppress(SpecInvalid):
        resolved = resolve([{"target": None}, made(cls)], CATALOG)
        assert from_json(to_json(resolved), ResolvedSpec) == resolved


@given(ANYTHING | st.lists(ANYTHING) | st.just(object()))
def test_rs5_layers_of_any_shape_raise_nothing_but_typed_errors(layers):
    with contextlib.suppress(SpecInvalid):
        resolve(layers, CATALOG)
