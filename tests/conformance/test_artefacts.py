"""Certificates, JUnit, the report page, known failures, traces, ledgers."""

import copy
import datetime as dt
import json
import os
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from pinfold.errors import NotFound
from pinfold.provider import InstanceRef
from pinfold.spec import digest_of
from pinfold_conformance import PROFILES, Options, Verdict, run
from pinfold_conformance._artefacts import write
from pinfold_conformance._certificate import certificate
from pinfold_conformance._known import KnownFailuresInvalid, load
from pinfold_conformance._ledger import Ledger, left_behind
from pinfold_conformance._replay import replay
from pinfold_conformance._sweep import sweep
from pinfold_conformance._trace import NotATrace, Step, minimise
from pinfold_conformance._trace import load as load_trace
from pinfold_conformance._verdicts import signature_of
from pinfold_conformance._verify import verify
from pinfold_conformance.adapters.toy import ToyLane, ToyProvider
from pinfold_conformance.machines import MACHINES
from pinfold_conformance.mutants import mutants
from tests.conformance.support import REMOTE

SMOKE = PROFILES["smoke"]


def mutant(beginning):
    return next(one for one in mutants() if one.name.startswith(beginning))


@pytest.fixture(scope="module")
def good():
    lane = ToyLane()
    report = run(lane, Options(profile=SMOKE))
    return report, certificate(report, lane.provider, command="pinfold conform reference")


@pytest.fixture(scope="module")
def bad():
    lane = mutant("machine.files").lane()
    report = run(lane, Options(profile=REMOTE, only=("machine.files", "FS-3.contents")))
    return report, certificate(report, lane.provider)


def test_a_certificate_tells_what_was_tested_and_holds_together(good):
    report, form = good
    assert verify(form) == []
    assert form["result"] == "conformant"
    assert form["counts"]["pass"] == len(report.outcomes)
    assert form["adapter"]["dist"] == "pinfold-conformance"
    assert len(form["adapter"]["package_sha256"]) == 64
    assert form["run"]["specs"][0]["digest"].startswith("sha256:")
    assert form["cleanup"] == "pass"
    assert form["attacks"]
    assert json.loads(json.dumps(form)) == form


def changed(form, change):
    other = copy.deepcopy(form)
    change(other)
    return other


def told_of(form):
    first = form["outcomes"][0]
    return f"{first['check']} [{first['spec']}]"


def leave_out(form):
    """What failed is told as though the question did not arise."""
    form["run"]["omitted"][told_of(form)] = "there is no such question here"
    del form["outcomes"][0]
    form["counts"]["pass"] -= 1


def resealed(form, change):
    other = changed(form, change)
    del other["digest"]
    return {**other, "digest": digest_of(other)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: f["outcomes"][0].update(verdict="fail"), "digest"),
        (lambda f: f.update(schema="other/1"), "no certificate"),
        (lambda f: f.pop("outcomes"), "malformed"),
        (lambda f: f["counts"].update({"pass": "many"}), "digest"),
    ],
    ids=["verdict", "schema", "outcomes", "counts"],
)
def test_a_certificate_that_was_changed_is_found_out(good, change, told):
    assert told in " ".join(verify(changed(good[1], change)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: f["outcomes"][0].update(verdict="fail"), "counts"),
        (lambda f: f.update(result="partial"), "the result is 'partial'"),
        (lambda f: f.update(outcomes=f["outcomes"][1:]), "not accounted for"),
        (lambda f: f["run"].update(only=["EX-1"]), "only some checks"),
        (lambda f: f["run"]["profile"].update(name="nightly"), "randomised"),
        (lambda f: f["suite"].update(checks="sha256:0"), "another suite"),
        (lambda f: f["outcomes"][0].update(level="SHOULD"), "is not told as the MUST"),
        (lambda f: f["outcomes"][0].update(kind="claim"), "is not told as the MUST of script"),
        (lambda f: f["outcomes"][0].update(check="EX-1.none"), "there is no check 'EX-1.none'"),
        (lambda f: f["run"]["profile"].update(parallel=1), "not those of the profile smoke"),
        (lambda f: f["claims"].update(pty={"claimed": True}), "claims is not what"),
        (lambda f: f.update(attacks={}), "attacks is not what"),
        (lambda f: f.update(cleanup="fail"), "cleanup is not what"),
        (leave_out, "can't be left out"),
        (lambda f: f["run"]["omitted"].update({told_of(f): "why"}), "told twice"),
    ],
    ids=[
        "verdict",
        "result",
        "outcomes",
        "only",
        "profile",
        "suite",
        "level",
        "kind",
        "check",
        "numbers",
        "claims",
        "attacks",
        "cleanup",
        "left out",
        "twice",
    ],
)
def test_a_certificate_that_was_changed_and_sealed_again_is_found_out(good, change, told):
    assert told in " ".join(verify(resealed(good[1], change)))


@pytest.mark.parametrize("nonsense", [None, [], "text", {}, {"schema": None}])
def test_whatever_is_no_certificate_is_told_so(nonsense):
    assert verify(nonsense)


def test_artefacts_of_a_failing_run(bad, good, tmp_path):
    reports, forms = [good[0], bad[0]], [good[1], {**bad[1], "target": "acme"}]
    write(tmp_path, reports, forms)
    assert {path.name for path in tmp_path.iterdir()} == {
        "certificate-reference.json", "certificate-acme.json", "junit.xml", "report.html", "traces",
    }  # fmt: skip
    root = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - our own
    suites = root.findall("testsuite")
    assert [suite.get("failures") for suite in suites] == ["0", "1"]
    (trace,) = (tmp_path / "traces").iterdir()
    assert load_trace(trace).machine == "files"


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.outside, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.outside += [
            v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")
        ]

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_self_contained_and_shows_failures_with_their_trace(bad, good, tmp_path):
    write(tmp_path, [good[0], bad[0]], [good[1], bad[1]])
    page = _Page()
    page.feed((tmp_path / "report.html").read_text())
    text = " ".join(page.text)
    assert page.outside == []
    assert "minimised trace" in text
    assert "machine.files" in text
    assert "not conformant" in text


def test_hostile_bytes_in_a_reason_stay_text(tmp_path, good):
    report, form = good
    evil = "<script>alert(1)</script>\x1b[2J\x00\udcff"
    form = copy.deepcopy(form)
    form["outcomes"][0].update(reason=evil, verdict="fail")
    import attrs

    worse = attrs.evolve(report.outcomes[0], reason=evil, verdict=Verdict.FAIL)
    write(tmp_path, [attrs.evolve(report, outcomes=(worse,))], [form])
    assert "<script>alert" not in (tmp_path / "report.html").read_text(errors="replace")
    ET.parse(tmp_path / "junit.xml")  # noqa: S314 - our own


# --- known failures -------------------------------------------------------------------------

KNOWN = """
[[failure]]
check = "EX-1.nonzero"
reason = "it always did"
issue = "acme-1"
expires = {expires}
match = "{match}"
"""


def known(tmp_path, text=KNOWN, expires="2999-01-31", match="command failed"):
    path = tmp_path / "known.toml"
    path.write_text(text.format(expires=expires, match=match))
    return load(path)


def outcome_with(entries, lane=None, profile=REMOTE):
    lane = lane or mutant("EX-1.nonzero--raises-on-failure").lane()
    report = run(lane, Options(profile=profile, only=("EX-1.nonzero",), known=entries))
    return report.by_id("EX-1.nonzero"), report.result


def test_a_known_failure_is_told_apart_and_makes_the_run_partial(tmp_path):
    outcome, result = outcome_with(known(tmp_path))
    assert (outcome.verdict, outcome.issue) == (Verdict.KNOWN_FAILURE, "acme-1")
    assert str(result) == "partial"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"match": "something else"}, "not as the known failure"),
        ({"expires": "2000-01-01"}, "expired"),
    ],
)
def test_another_failure_or_a_late_one_is_a_failure(tmp_path, changes, told):
    outcome, _ = outcome_with(known(tmp_path, **changes))
    assert outcome.verdict is Verdict.FAIL
    assert told in outcome.reason


def test_an_unexpected_pass_fails(tmp_path):
    outcome, _ = outcome_with(known(tmp_path), ToyLane())
    assert outcome.verdict is Verdict.FAIL
    assert "strike it from the list" in outcome.reason


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("smallest", PROFILES)
def test_below_its_profile_an_entry_does_not_apply_at_all(tmp_path, smallest, profile):
    entries = known(tmp_path, KNOWN + f'profile = "{smallest}"')
    below = PROFILES[profile].rank < PROFILES[smallest].rank
    failing, _ = outcome_with(entries, profile=PROFILES[profile])
    assert failing.verdict is (Verdict.FAIL if below else Verdict.KNOWN_FAILURE)
    passing, _ = outcome_with(entries, ToyLane(), PROFILES[profile])
    assert passing.verdict is (Verdict.PASS if below else Verdict.FAIL)


def test_a_check_that_fails_in_two_ways_has_two_entries(tmp_path):
    entries = known(tmp_path, KNOWN + KNOWN.replace("{match}", "another way"))
    assert outcome_with(entries)[0].verdict is Verdict.KNOWN_FAILURE
    assert outcome_with(entries[::-1])[0].verdict is Verdict.KNOWN_FAILURE


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[failure]]\ncheck = 'EX-1.nonzero'", "is missing"),
        (KNOWN + 'target = ""', "target is missing or empty"),
        (KNOWN + 'profile = ""', "profile is missing or empty"),
        (KNOWN + "profile = 2", "profile is a string"),
        (
            KNOWN + 'profile = "huge"',
            "there is no profile 'huge'; it is smoke, remote, ci, nightly",
        ),
        (KNOWN.replace("EX-1.nonzero", "EX-9.gone"), "there is no check"),
        (KNOWN.replace("{expires}", "'soon'"), "expires is a date"),
        (KNOWN + "tpyo = 1", "the keys are"),
        ("failure = 3", "[[failure]] tables"),
        ("[[failure", "known.toml"),
        (KNOWN.replace("{match}", "(("), "no regular expression"),
    ],
)
def test_a_bad_list_is_told_with_its_place(tmp_path, text, told):
    with pytest.raises(KnownFailuresInvalid, match=r"known\.toml") as caught:
        known(tmp_path, text)
    assert told in str(caught.value)


def test_days_count(tmp_path):
    (entry,) = known(tmp_path)
    assert entry.expires == dt.date(2999, 1, 31)


# --- traces ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_minimising_keeps_what_is_needed_in_few_replays():
    steps = [Step("x", {"n": n}) for n in range(40)]

    async def fails(fewer):
        return {4, 23} <= {step.args["n"] for step in fewer}

    small, replays = await minimise(steps, fails, 80)
    assert [step.args["n"] for step in small] == [4, 23]
    assert replays <= 80


@pytest.mark.anyio
async def test_minimising_ends_with_its_budget():
    steps = [Step("x", {"n": n}) for n in range(100)]

    async def fails(fewer):
        return len(fewer) >= 99

    small, replays = await minimise(steps, fails, 10)
    assert replays == 10
    assert len(small) >= 99


@pytest.mark.parametrize(
    "bug", [pytest.param(one, id=one.name) for one in mutants() if one.kills[:8] == "machine."]
)
def test_a_failing_trace_is_minimised_saved_and_replayed_on_any_target(bug, tmp_path):
    report = run(bug.lane(), Options(profile=REMOTE, only=(bug.kills,)))
    outcome = report.by_id(bug.kills)
    write(tmp_path, [report], [certificate(report, bug.lane().provider)])
    (file,) = (tmp_path / "traces").iterdir()
    trace = load_trace(file)
    assert f"after {len(trace.steps)} of" in outcome.reason
    assert 1 <= len(trace.steps) <= 8
    again = replay(trace, bug.lane())
    assert (again.verdict, trace.signature) == (Verdict.FAIL, signature_of(bug.kills, again.reason))
    assert replay(trace, ToyLane()).verdict is Verdict.PASS


def test_every_machine_has_a_bug_whose_trace_is_replayed():
    assert {f"machine.{name}" for name in MACHINES} <= {one.kills for one in mutants()}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 1}', '{"schema": "pinfold-conformance-trace/1", "steps": 3}']
)
def test_what_is_no_trace_is_told_so(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(NotATrace, match=r"trace\.json"):
        load_trace(path)


async def no_connection(name):
    raise NotFound(name)


# --- ledgers --------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_ledger_is_on_disk_before_anything_is_made_and_gone_when_all_is(tmp_path):
    ledger = Ledger("run-1", "reference", tmp_path / "run-1.json")
    ref = InstanceRef(provider="reference", id="1")
    await ledger.register(ref)
    assert list(left_behind(tmp_path)) == []  # this process lives
    form = json.loads((tmp_path / "run-1.json").read_text())
    assert form["pid"] == os.getpid()
    ledger.forget(ref)
    ledger.close()
    assert list(tmp_path.iterdir()) == []


def test_sweep_removes_what_a_crashed_run_left(tmp_path):
    import anyio

    provider = ToyProvider()
    lane = ToyLane(provider=provider)

    async def crash():
        from pinfold.plugins import Catalog
        from pinfold.provider import Context, Owner
        from pinfold.resolve import pin, resolve

        catalog = Catalog([lane.provider])
        pinned = await pin(resolve(lane.specs[0], catalog), catalog)
        ledger = Ledger("run-1", "reference", tmp_path / "run-1.json")
        ctx = Context(owner=Owner(store="run-1", sandbox="sbx_1"), register=ledger.register)
        await lane.make(pinned, ctx)

    anyio.run(crash)
    file = tmp_path / "run-1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": 2**22 + 1}))
    assert len(provider.bodies) == 1
    told = list(sweep(tmp_path, no_connection, lambda name: lane if name == "reference" else None))
    assert told == [("run-1 on reference: 1 removed", True)]
    assert provider.bodies == {}
    assert list(tmp_path.iterdir()) == []
    assert list(sweep(tmp_path, no_connection)) == [("nothing is left behind", True)]


def test_sweep_leaves_what_it_can_not_judge(tmp_path):
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "gone.json").write_text(
        json.dumps({"run": "r", "target": "nobody", "pid": 2**22 + 1, "refs": []})
    )
    (damaged, sound), (gone, also) = sweep(tmp_path, no_connection, lambda _: None)
    assert (sound, also) == (False, False)
    assert "damaged.json: damaged" in damaged
    assert gone.startswith("r: the lane 'nobody' is not installed: nothing done")
    assert {path.name for path in tmp_path.iterdir()} == {"damaged.json", "gone.json"}
