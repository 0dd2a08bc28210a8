"""Whose fault it is: what a third party's code raises or returns is a failure of its own.

Never a pass, a traceback, an error of the suite's, or the end of the program (ER-1).
"""

from pathlib import PurePosixPath

import attrs
import pytest

from pinfold.provider import (
    Blob,
    Entry,
    ExecRequest,
    ExecResult,
    Features,
    FileStat,
    FileType,
    InstanceRef,
    RestoreReport,
    Scan,
    TreeItem,
)
from pinfold_conformance import Options, Result, Verdict, run
from pinfold_conformance._expect import AdapterFault
from pinfold_conformance._forms import (
    check_blob,
    check_item,
    check_ref,
    check_refs,
    check_report,
    check_result,
    check_scan,
    check_stat,
    typed,
)
from pinfold_conformance.adapters.toy import ToyLane
from pinfold_conformance.mutants._base import BugInstance, BugLane, BugProvider
from tests.conformance.support import REMOTE, LaneWith


class Ends(BaseException):
    """No error at all, as what a test framework raises is none."""


RAISED = [SystemExit(0), Ends("over"), ValueError("odd")]

#: What can go wrong, and the check, or step of the setup, that meets it.
HOOKS = {
    "unavailable": "target.available",
    "make": "EX-1.nonzero",
    "reset": "LC-5.lane-reset",
    "lose": "EX-14.lost",
    "cut": "EX-14.cut",
    "witness": "FS-3.witness",
    "listener_address": "TR-1.network-deny",
}
METHODS = {
    "probe": "target.available",
    "check": "target.resolves",
    "pin": "target.resolves",
    "create": "EX-1.nonzero",
    "attach": "LC-1.attach",
    "list": "LC-9.labels",
    "destroy": "LC-9.destroy",
}
CLAIMS = {"capabilities": "PR-3.descriptor", "features": "PR-3.descriptor", "limits": "PR-3.limits"}
CALLS = {"exec": "EX-1.nonzero", "status": "LC-5.empty", "destroy": "LC-9.destroy"}

PLAIN = ("witness", "listener_address", "check")


def raising(exc, name):
    def raises(*_, **__):
        raise exc

    async def later(*_, **__):
        raise exc

    return raises if name in PLAIN else later


def giving(value, name):
    async def later(*_, **__):
        return value

    return (lambda *_, **__: value) if name in PLAIN else later


def lane_with(where, name, method):
    base = ToyLane()
    if where is HOOKS:
        return LaneWith(**{name: method})
    if where is METHODS:
        provider = BugProvider(base.provider)
        setattr(provider, name, method)
        return BugLane(base, provider=provider)
    if where is CLAIMS:
        provider = BugProvider(base.provider)
        provider.descriptor = attrs.evolve(provider.descriptor, **{name: method})
        return BugLane(base, provider=provider)
    return BugLane(base, wrap=type("Odd", (BugInstance,), {name: method}))


PLACES = [
    pytest.param(where, name, check, id=f"{kind}-{name}")
    for kind, where in (("lane", HOOKS), ("provider", METHODS), ("instance", CALLS))
    for name, check in where.items()
]


def failed(lane, check):
    """The outcome of a run that can only have failed, by the adapter's fault."""
    only = () if check.startswith("target.") else (check,)
    report = run(lane, Options(profile=REMOTE, only=only, scale=0.2))
    assert report.result is Result.NOT_CONFORMANT, report.outcomes
    return report.outcomes[0]


@pytest.mark.parametrize("exc", RAISED, ids=lambda exc: type(exc).__name__)
@pytest.mark.parametrize(("where", "name", "check"), PLACES)
def test_whatever_is_raised_is_a_failure_of_who_was_called(where, name, check, exc):
    outcome = failed(lane_with(where, name, raising(exc, name)), check)
    assert outcome.verdict is Verdict.FAIL
    assert type(exc).__name__ in outcome.reason


@pytest.mark.parametrize("exc", RAISED, ids=lambda exc: type(exc).__name__)
@pytest.mark.parametrize(("name", "check"), CLAIMS.items())
def test_a_descriptor_that_raises_is_a_failure(name, check, exc):
    def raises(_):
        raise exc

    outcome = failed(lane_with(CLAIMS, name, raises), check)
    assert type(exc).__name__ in outcome.reason


@pytest.mark.parametrize("value", [7, "text", object()], ids=["number", "text", "object"])
@pytest.mark.parametrize(("where", "name", "check"), PLACES)
def test_whatever_is_returned_in_a_wrong_form_is_a_failure(where, name, check, value):
    if isinstance(value, str) and name in ("listener_address", "unavailable"):
        return  # what it is to return
    failed(lane_with(where, name, giving(value, name)), check)


@pytest.mark.parametrize("name", ["name", "provider", "specs", "allow_attacks"])
@pytest.mark.parametrize("value", [7, object()], ids=["number", "object"])
def test_a_lane_that_is_none_is_a_failure(name, value):
    class Odd(BugLane):
        pass

    setattr(Odd, name, property(lambda _: value, lambda *_: None))
    outcome = failed(Odd(ToyLane()), "target.loads")
    assert outcome.check == "target.loads"


DIGEST = "0" * 64
PATH = PurePosixPath("/workspace/a")
REQUEST = ExecRequest(shell="x")
SCAN = Scan(entries=(Entry(path="a", type=FileType.FILE, mode=0o644, digest=DIGEST),))

#: Each kind of value with one of its form, and what holds it to that.
FORMS = [
    (
        ExecResult(exit_code=0),
        lambda value: check_result(REQUEST, value, Features(), streamed=False),
    ),
    (FileStat(path=PATH, type=FileType.FILE), lambda value: check_stat("stat", value)),
    (
        TreeItem(path=PurePosixPath("l"), type=FileType.SYMLINK, link="x"),
        check_item,
    ),
    (SCAN, check_scan),
    (
        SCAN.entries[0],
        lambda value: check_scan(attrs.evolve(SCAN, entries=(value,))),
    ),
    (Blob(path="a", data=b"", last=True, digest=DIGEST), check_blob),
    (RestoreReport(), check_report),
    (InstanceRef(provider="p", id="i"), lambda value: check_ref("ref", value)),
    (InstanceRef(provider="p", id="i"), lambda value: check_refs([value])),
]


#: Fields that the class itself converts, or refuses.
CONVERTED = {InstanceRef: {"data"}}


class Agrees(bytes):
    """Bytes that equal whatever they are compared with."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = bytes.__hash__


@pytest.mark.parametrize(
    ("value", "held"),
    FORMS,
    ids=[f"{type(value).__name__}{n}" for n, (value, _) in enumerate(FORMS)],
)
def test_no_field_is_of_another_form(value, held):
    held(value)
    names = {field.name for field in attrs.fields(type(value))}
    for name in names - CONVERTED.get(type(value), set()):
        for wrong in (object(), 1.5, [object()], Agrees(b"x")):
            odd = attrs.evolve(value, **{name: wrong})
            with pytest.raises(AdapterFault):
                held(odd)


def test_a_value_that_says_of_itself_what_it_likes_is_none_of_a_builtin_type():
    assert Agrees(b"x") == b"y"
    with pytest.raises(AdapterFault):
        typed("data", Agrees(b"x"), bytes)
    with pytest.raises(AdapterFault):
        typed("exit_code", True, int)
    assert typed("data", b"x", bytes) == b"x"
