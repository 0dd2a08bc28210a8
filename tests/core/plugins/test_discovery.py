"""PR-1, PR-2, PR-4, PR-6: plugins are found by entry point, and one that is broken hides nobody."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import anyio
import attrs
import pytest

from pinfold.plugins import Catalog, Entries, Loaded, Problem
from pinfold.provider import Availability, Features
from pinfold.resolve import TargetInfo, targets
from tests.core.support import ALL_TRUE, ToyProvider, catalog, vfs_provider

GOOD = """
from tests.core.support import ToyProvider
provider = ToyProvider("good")
"""


@pytest.fixture
def dist(tmp_path, monkeypatch):
    """Make distributions with entry points, found by this interpreter and no other."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name: str, source: str, points: dict[str, str]) -> str:
        module = f"plug_{name.replace('-', '_')}"
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = []
        for group, entry in points.items():
            lines += [f"[{group}]", entry.format(module=module), ""]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return module

    yield make
    for module in [name for name in sys.modules if name.startswith("plug_")]:
        del sys.modules[module]


def provider_dist(make, name, source, entry=None):
    return make(
        f"dist-{name}", source, {"pinfold.providers": entry or f"{name} = {{module}}:provider"}
    )


def named(items, name):
    return next(item for item in items if item.name == name)


def test_pr1_a_provider_is_found_by_its_entry_point_and_knows_its_dist(dist):
    provider_dist(dist, "good", GOOD)

    found = Catalog().find("good")

    assert isinstance(found, Loaded)
    assert (found.name, found.dist, found.version) == ("good", "dist-good", "1.2")
    assert Catalog().find("nobody") is None


def test_pr1_names_are_read_without_importing(dist):
    module = provider_dist(dist, "lazy", "raise RuntimeError('imported')")

    assert "lazy" in Catalog().names
    assert module not in sys.modules


RAISING = """
from tests.core.support import ToyProvider
class Raising(ToyProvider):
    @property
    def descriptor(self):
        raise {}
    @descriptor.setter
    def descriptor(self, value):
        pass
provider = Raising()
"""

BROKEN = {
    "raises": ("raise RuntimeError('kaput')", "broken", "kaput"),
    "exits": ("import sys; sys.exit(3)", "broken", "SystemExit"),
    "syntax": ("def (:", "broken", "SyntaxError"),
    "missing": ("import no_such_module_here", "broken", "no_such_module_here"),
    "no-object": ("pass", "broken", "provider"),
    "no-provider": ("provider = 3", "invalid", "int"),
    "descriptor-raises": (RAISING.format("RuntimeError('kaput')"), "broken", "kaput"),
    "descriptor-exits": (RAISING.format("SystemExit(3)"), "broken", "SystemExit"),
    "contract-number": (
        "from tests.core.support import ToyProvider\nprovider = ToyProvider('contract-number', contract=3)",
        "broken",
        "TypeError",
    ),
    "a-class": (
        "from tests.core.support import ToyProvider as provider",
        "invalid",
        "not a pinfold",
    ),
    "other-name": (
        "from tests.core.support import ToyProvider\nprovider = ToyProvider('x')",
        "invalid",
        "'x'",
    ),
    "too-new": (
        "from tests.core.support import ToyProvider\nprovider = ToyProvider('too-new', contract='>=2,<3')",
        "incompatible",
        ">=2,<3",
    ),
    "no-range": (
        "from tests.core.support import ToyProvider\nprovider = ToyProvider('no-range', contract='one')",
        "invalid",
        "one",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_pr2_a_broken_plugin_is_shown_with_its_own_error_and_hides_nobody(dist, name):
    source, code, text = BROKEN[name]
    provider_dist(dist, "good", GOOD)
    provider_dist(dist, name, source)

    items = Catalog().describe()

    problem = named(items, name)
    assert isinstance(problem, Problem)
    assert problem.code == code
    assert text in problem.message
    assert problem.dists == (f"dist-{name}",)
    assert isinstance(named(items, "good"), Loaded)


def test_pr2_two_plugins_of_one_name_are_an_error_that_names_both_dists(dist):
    dist(
        "dist-one",
        "from tests.core.support import ToyProvider\nprovider = ToyProvider('same')",
        {"pinfold.providers": "same = {module}:provider"},
    )
    dist(
        "dist-two",
        "from tests.core.support import ToyProvider\nprovider = ToyProvider('same')",
        {"pinfold.providers": "same = {module}:provider"},
    )
    provider_dist(dist, "good", GOOD)

    problem = Catalog().find("same")

    assert isinstance(problem, Problem)
    assert problem.code == "duplicate"
    assert problem.dists == ("dist-one", "dist-two")
    assert "dist-one and dist-two" in problem.message
    assert isinstance(Catalog().find("good"), Loaded)


def test_pr2_a_plugin_whose_import_hangs_is_shown_as_slow_and_hides_nobody(dist):
    provider_dist(dist, "good", GOOD)
    provider_dist(
        dist,
        "slow",
        "import tests.core.plugins.test_discovery as t\nt.RELEASE.wait(30)\nprovider = None",
    )
    sys.modules.setdefault("tests.core.plugins.test_discovery", sys.modules[__name__])
    RELEASE.clear()
    try:
        items = Entries("pinfold.providers").load_all(deadline=0.5)
    finally:
        RELEASE.set()

    assert named(items, "slow").code == "slow"
    assert isinstance(named(items, "good"), Loaded)


RELEASE = threading.Event()


def test_pr6_a_provider_built_for_1_0_works_on_every_1_x_core():
    for contract in (">=1.0,<2", ">=1,<2", "~=1.0"):
        assert isinstance(Catalog([ToyProvider(contract=contract)]).find("toy"), Loaded)


async def test_pr4_targets_are_probed_and_the_unavailable_say_why(anyio_backend):
    class Away(ToyProvider):
        async def probe(self):
            return Availability(available=False, reason="no engine", hint="start it")

    class Raises(ToyProvider):
        async def probe(self):
            raise RuntimeError("oops")

    rows = {
        row.provider: row
        for row in await targets(Catalog([Away("away"), Raises("raises"), ToyProvider()]))
    }

    assert (rows["away"].available, rows["away"].reason, rows["away"].hint) == (
        False,
        "no engine",
        "start it",
    )
    assert rows["raises"].available is False
    assert "oops" in rows["raises"].reason
    assert rows["toy"].available is True


async def test_pr4_probes_run_concurrently_and_under_a_deadline(anyio_backend, monkeypatch):
    monkeypatch.setattr("pinfold.resolve._targets.PROBE_TIMEOUT_SECONDS", 0.2)
    started: list[str] = []
    all_started = anyio.Event()

    class Hangs(ToyProvider):
        async def probe(self):
            started.append(self.descriptor.name)
            if len(started) == 3:
                all_started.set()
            await all_started.wait()
            await anyio.sleep_forever()
            raise AssertionError

    rows = await targets(Catalog([Hangs("a"), Hangs("b"), Hangs("c"), ToyProvider()]))

    assert sorted(started) == ["a", "b", "c"]
    assert {row.provider: row.available for row in rows} == {
        "a": False,
        "b": False,
        "c": False,
        "toy": True,
    }
    assert "no answer" in rows[0].reason


async def test_pr3_a_row_tells_capabilities_levels_networks_and_durability(anyio_backend):
    (row,) = await targets(Catalog([vfs_provider(features=Features(symlinks=True))]), probe=False)

    assert row.available is None
    form = row.to_dict()
    assert form["kind"] == "vfs"
    assert form["levels"] == ["isolated"]
    assert form["networks"] == {"isolated": ["deny", "allowlist"]}
    assert form["durability"] == ["checkpointed", "none"]
    assert form["capabilities"]["portable_checkpoint"] is True
    assert form["features"]["symlinks"] is True
    assert form["limits"]["stdin_bytes"] == 16 << 20


@attrs.frozen(kw_only=True)
class NeedsImage:
    image: str


async def test_pr3_a_provider_with_required_options_is_described_by_its_example(anyio_backend):
    def capabilities(spec):
        return ALL_TRUE if spec.target.options["image"] == "x:1" else None

    provider = ToyProvider(options=NeedsImage, example={"image": "x:1"})
    object.__setattr__(provider.descriptor, "capabilities", capabilities)
    forgot = ToyProvider("forgot", options=NeedsImage)
    object.__setattr__(forgot.descriptor, "capabilities", capabilities)

    rows = {row.provider: row for row in await targets(Catalog([provider, forgot]), probe=False)}

    assert rows["toy"].capabilities == ALL_TRUE
    assert rows["forgot"].available is False
    assert "KeyError" in rows["forgot"].reason


async def test_pr2_a_descriptor_that_fails_is_this_providers_own_error(anyio_backend):
    bad = ToyProvider("bad")
    object.__setattr__(bad.descriptor, "features", lambda _: 1 / 0)

    rows = {row.provider: row for row in await targets(Catalog([bad, ToyProvider()]), probe=False)}

    assert "ZeroDivisionError" in rows["bad"].reason
    assert isinstance(rows["toy"], TargetInfo)
    assert rows["toy"].capabilities


def test_a_catalog_of_given_providers_is_those_and_no_others():
    assert catalog().names == ("bashkit", "host", "toy")
    assert [item.name for item in catalog().describe()] == ["bashkit", "host", "toy"]


def test_speed_importing_pinfold_loads_nothing_heavy(tmp_path):
    heavy = ["rich", "sqlite3", "fsspec", "docker", "paramiko", "bashkit", "keyring", "zstandard"]
    code = f"import pinfold, sys; print([m for m in {heavy} if m in sys.modules])"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"


def test_pr1_finding_and_describing_providers_imports_no_vendor_sdk():
    vendors = ["bashkit", "docker", "paramiko", "daytona"]
    code = (
        "import sys\nfrom pinfold.plugins import installed\ninstalled().describe()\n"
        f"print([m for m in {vendors} if m in sys.modules])"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"
    assert Path(sys.executable).exists()
