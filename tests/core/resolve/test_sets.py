"""RS-8: named profiles, a default, and who may choose."""

from __future__ import annotations

import pytest

from pinfold.errors import InvalidArgument, NotFound, SpecInvalid
from pinfold.plugins import TemplateRevision
from pinfold.resolve import Layer, Profile, ProfileSet, SetMode, resolve
from tests.core.support import catalog

SCRATCH = Profile(spec={"target": {"kind": "vfs", "provider": "bashkit"}})
BUILD = Profile(spec={"target": {"kind": "container"}, "durability": "checkpointed"})
INLINE = {"target": {"kind": "host"}}


def both(mode=None, **more):
    return ProfileSet(
        profiles={"scratch": SCRATCH, "build": BUILD}, default="scratch", mode=mode, **more
    )


def test_rs8_the_mode_left_out_is_fixed_for_one_entry_else_selectable():
    assert ProfileSet(profiles={"a": SCRATCH}).policy is SetMode.FIXED
    assert both().policy is SetMode.SELECTABLE


@pytest.mark.parametrize("mode", list(SetMode))
def test_rs8_no_choice_is_the_default(mode):
    profiles = (
        {"scratch": SCRATCH} if mode is SetMode.FIXED else {"scratch": SCRATCH, "build": BUILD}
    )

    assert ProfileSet(profiles=profiles, default="scratch", mode=mode).select().name == "scratch"


# policy, choice -> the selection's name, or the error
TABLE = [
    (SetMode.FIXED, "scratch", InvalidArgument),
    (SetMode.FIXED, INLINE, InvalidArgument),
    (SetMode.SELECTABLE, "build", "build"),
    (SetMode.SELECTABLE, "bulid", NotFound),
    (SetMode.SELECTABLE, INLINE, InvalidArgument),
    (SetMode.CONFIGURABLE, "build", "build"),
    (SetMode.CONFIGURABLE, "nope", NotFound),
    (SetMode.CONFIGURABLE, INLINE, "inline"),
]


@pytest.mark.parametrize(("mode", "choice", "expected"), TABLE, ids=range(len(TABLE)))
def test_rs8_the_policy_says_what_may_be_chosen(mode, choice, expected):
    profiles = (
        {"scratch": SCRATCH} if mode is SetMode.FIXED else {"scratch": SCRATCH, "build": BUILD}
    )
    profile_set = ProfileSet(profiles=profiles, default="scratch", mode=mode)

    if isinstance(expected, str):
        assert profile_set.select(choice).name == expected
    else:
        with pytest.raises(expected):
            profile_set.select(choice)


@pytest.mark.parametrize("mode", list(SetMode))
def test_rs8_an_override_needs_a_configurable_set(mode):
    profiles = (
        {"scratch": SCRATCH} if mode is SetMode.FIXED else {"scratch": SCRATCH, "build": BUILD}
    )
    profile_set = ProfileSet(profiles=profiles, default="scratch", mode=mode)
    override = {"durability": "none"}

    if mode is SetMode.CONFIGURABLE:
        selection = profile_set.select(override=override)
        assert resolve(selection.layers, catalog()).durability == "none"
    else:
        with pytest.raises(InvalidArgument, match=str(mode)):
            profile_set.select(override=override)


def test_rs8_a_misspelt_profile_is_suggested():
    with pytest.raises(NotFound, match="build"):
        both().select("bulid")


@pytest.mark.parametrize(
    ("profile_set", "at"),
    [
        (ProfileSet(profiles={}), "/profiles"),
        (ProfileSet(profiles={f"p{i}": SCRATCH for i in range(17)}, default="p1"), "/profiles"),
        (ProfileSet(profiles={"a": SCRATCH, "b": SCRATCH}), "/default"),
        (ProfileSet(profiles={"a": SCRATCH}, default="b"), "/default"),
        (both(mode=SetMode.FIXED), "/mode"),
    ],
    ids=["none", "17", "no default", "default names nothing", "fixed has one"],
)
def test_rs8_a_set_is_1_to_16_profiles_and_a_default_that_names_one(profile_set, at):
    with pytest.raises(SpecInvalid) as caught:
        profile_set.resolve_all(catalog())

    assert at in {fault.pointer for fault in caught.value.faults}
    with pytest.raises(SpecInvalid):
        profile_set.select()


def test_rs8_every_entry_is_resolved_when_the_set_is_saved():
    bad = Profile(spec={"target": {"kind": "vfs"}, "durability": "provider_snapshot"})
    profile_set = ProfileSet(profiles={"ok": SCRATCH, "a/b": bad}, default="ok")

    with pytest.raises(SpecInvalid) as caught:
        profile_set.resolve_all(catalog())

    assert [fault.pointer for fault in caught.value.faults] == ["/profiles/a~1b/durability"]
    assert set(both().resolve_all(catalog())) == {"scratch", "build"}


def test_rs_deployment_defaults_lie_below_every_profile_and_inline_spec():
    below = (Layer({"lifecycle": {"idle_after_seconds": 7}}, "deployment"),)
    profile_set = both(mode=SetMode.CONFIGURABLE, below=below)

    for choice in (None, "build", INLINE):
        spec = resolve(profile_set.select(choice).layers, catalog())
        assert spec.lifecycle.idle_after_seconds == 7


def test_rs3_a_profiles_template_lies_below_it_and_its_revision_is_pinned():
    revision = TemplateRevision(
        name="base", revision_id="tr_9", spec={"target": {"kind": "vfs"}, "durability": "none"}
    )
    profile = Profile(spec={"lifecycle": {"idle_after_seconds": 5}}, template="base")
    profile_set = ProfileSet(profiles={"p": profile})

    spec = resolve(profile_set.select(None, {"base": revision}.get).layers, catalog())

    assert (spec.template_revision_id, spec.durability) == ("tr_9", "none")
    with pytest.raises(NotFound, match="base"):
        profile_set.select(None, lambda _: None)
