"""What a provider says of itself, and whether it holds (PR)."""

from __future__ import annotations

import time

import attrs
from packaging.specifiers import SpecifierSet

from pinfold.plugins import Catalog
from pinfold.provider import (
    Availability,
    Capabilities,
    Descriptor,
    ExecRequest,
    Features,
    InstanceStatus,
    Pausable,
    Pins,
    Ports,
    Terminals,
    roots_of,
)
from pinfold.resolve import resolve
from pinfold.spec import (
    CONTRACT,
    PROBE_TIMEOUT_SECONDS,
    Limits,
    PinnedSpec,
    canonical_json,
    to_json,
)
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, require
from pinfold_conformance._forms import typed
from pinfold_conformance._registry import Place, check


@check("PR-3.descriptor", "PR-6", each_spec=True)
async def descriptor(case: Case) -> None:
    """The descriptor is whole, of the contract's types, and the same each time it is asked."""
    value = typed("Provider.descriptor", case.provider.descriptor, Descriptor)
    spec = case.pinned.spec
    require(value.name and value.display_name, "the descriptor has no name")
    require(value.kinds and value.containment and value.durabilities, "the descriptor is empty")
    require(CONTRACT in SpecifierSet(value.contract), f"it is not built for contract {CONTRACT}")
    require(attrs.has(value.options), "the option class is no attrs class")
    for function, kind in (
        (value.capabilities, Capabilities),
        (value.features, Features),
        (value.limits, Limits),
    ):
        first = typed(f"Descriptor.{kind.__name__.lower()}", function(spec), kind)
        equal(function(spec), first, f"Descriptor.{kind.__name__.lower()}, asked twice (RS-7)")
        for field in attrs.fields(kind):
            if kind is not Limits and field.name != "tree_kill":
                typed(f"{kind.__name__}.{field.name}", getattr(first, field.name), bool)
    if spec.target is not None:
        require(spec.target.kind in value.kinds, "the spec's kind is not among the descriptor's")
        equal(case.instance.ref.provider, value.name, "the name in the ref of its instances")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "an instance of it")


@check("PR-3.limits", each_spec=True)
async def limits(case: Case) -> None:
    """Limits only lower the contract's numbers, and the least of a file's life fits in them."""
    mine, most = case.limits, Limits()
    for field in attrs.fields(Limits):
        value, default = getattr(mine, field.name), getattr(most, field.name)
        if value is not None:
            require(value > 0, f"Limits.{field.name} is {value}")
        if default is not None:
            require(value is not None and value <= default, f"Limits.{field.name} is raised")
    path = await case.scratch() / "file"
    data = bytes(min(4096, mine.file_bytes or 4096, mine.read_bytes))
    await case.files.write(path, data)
    equal(await case.files.read(path), data, "a file of 4 KiB")


@check("TR-1.covered", place=Place.NONE)
async def covered(case: Case) -> None:
    """What the descriptor claims the lane tests: each network mode of its levels, each durability.

    Levels that none of its specs has are another lane's affair, and told as untested.
    """
    descriptor, lane = case.provider.descriptor, case.site.lane
    resolved = [resolve(spec, Catalog([case.provider])) for spec in lane.specs]
    if all(spec.target is None for spec in resolved):
        return  # the contract's own rows, of no provider (section 1)
    tested = {(spec.containment.level, spec.containment.network.mode) for spec in resolved}
    levels = {level for level, _ in tested}
    missing = [
        f"network {mode} at level {row.level}"
        for row in descriptor.containment
        for mode in sorted(row.networks)
        if row.level in levels and (row.level, mode) not in tested
    ]
    durabilities = {spec.durability for spec in resolved}
    missing += [f"durability {mode}" for mode in sorted(descriptor.durabilities - durabilities)]
    case.evidence["untested levels"] = sorted({r.level for r in descriptor.containment} - levels)
    require(not missing, f"claimed, and in no spec of the lane: {', '.join(missing)} (TR-1)")
    async with case.another() as instance:
        equal(await instance.status(), InstanceStatus.RUNNING, "an instance of the lane")


@check("PR-4.probe", place=Place.SHARED)
async def probe(case: Case) -> None:
    """probe answers within its deadline, again and again, and tells the truth."""
    for _ in range(3):
        started = time.monotonic()
        value = typed("the result of probe", await case.provider.probe(), Availability)
        took = time.monotonic() - started
        require(took < PROBE_TIMEOUT_SECONDS, f"probe took {took:.1f} s (section 1b)")
        equal(value.available, True, "Availability.available of a target that can be made")
        require(not value.reason, "an available target has a reason not to be")
        canonical_json(value.details)
    equal(await case.instance.status(), InstanceStatus.RUNNING, "an instance of it")


@check("PR-7.in-force", each_spec=True)
async def in_force(case: Case) -> None:
    """What is in force is at least what was promised; powers are there exactly when said."""
    promised = case.provider.descriptor.features(case.pinned.spec)
    equal(case.features.missing(promised), (), "promised features that are not in force")
    inner = case.inner
    equal(isinstance(inner, Pausable), case.features.pause, "Pausable, against the feature pause")
    equal(isinstance(inner, Terminals), case.features.pty, "Terminals, against the feature pty")
    equal(case.features.pty, case.capabilities.pty, "the feature pty, against the capability")
    equal(isinstance(inner, Ports), case.capabilities.ports, "Ports, against the capability ports")
    path = await case.scratch() / "file"
    await case.files.write(path, b"1")
    equal(await case.files.read(path), b"1", "a file of it")


@check("RS-3.pins", place=Place.SHARED)
async def pins(case: Case) -> None:
    """pin gives plain names and values, the same when asked again, without a secret."""
    ctx = case.site.context()
    first = typed("the result of pin", await case.provider.pin(case.pinned.spec, ctx), Pins)
    for mapping in (first.pins, first.unpinned):
        for name, value in mapping.items():
            typed("the name of a pin", name, str)
            typed(f"the pin {name}", value, str)
    again = await case.provider.pin(case.pinned.spec, ctx)
    equal(
        (dict(again.pins), dict(again.unpinned)), (dict(first.pins), dict(first.unpinned)), "pins"
    )
    equal(to_json(case.pinned)["pins"], dict(first.pins), "pins of the spec under test")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "an instance of the pinned spec")


@check("RS-2.pure")
async def pure(case: Case) -> None:
    """check is pure: the same faults each time, none for a spec that was resolved."""
    spec = case.pinned.spec
    first = list(case.provider.check(spec))
    equal(list(case.provider.check(spec)), first, "check, asked twice")
    equal(first, [], "faults of a spec that was resolved")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "an instance of the spec")


@check("SP-4.roots", place=Place.NONE, deadline_s=120)
async def roots(case: Case) -> None:
    """A writable root is as good as the workspace, and scratch: no part of the tree."""
    from pathlib import PurePosixPath

    from pinfold.errors import OutsideWorkspace
    from pinfold_conformance._expect import expect_raises

    spec = case.pinned.spec
    supports = case.provider.descriptor.supports(spec.containment.level)
    if supports is None or not supports.writable_roots:
        with expect_raises(Exception, what="a spec with a root where roots can't be enforced"):
            _with_root(case, "/pinfold-scratch")
        async with case.another() as instance:
            with expect_raises(OutsideWorkspace, what="a write outside the workspace"):
                await instance.files.write("/pinfold-scratch/x", b"")
            await instance.files.write("/workspace/x", b"1")
            equal(await instance.files.read("/workspace/x"), b"1", "a write in the workspace")
        return
    pinned = _with_root(case, "/pinfold-scratch")
    root = PurePosixPath("/pinfold-scratch")
    equal(roots_of(pinned.spec), (root,), "the roots of the spec")
    site = attrs.evolve(case.site, pinned=pinned)
    async with site.lent() as instance:
        await instance.files.write(root / "deep" / "file", b"root")
        equal(await instance.files.read(root / "deep" / "file"), b"root", "a file in a root")
        with expect_raises(OutsideWorkspace, what="a write beside the root"):
            await instance.files.write("/pinfold-scratchy/x", b"")
        if spec.target is not None:
            d = case.dialect
            request = ExecRequest(
                shell=d.seq(d.load("file"), d.save("new", b"2")), cwd=root / "deep"
            )
            equal((await instance.exec(request)).stdout, b"root", "a command in a root")
            equal(await instance.files.read(root / "deep" / "new"), b"2", "what it wrote there")
        scan = await instance.tree.scan()
        equal([entry.path for entry in scan.entries], [], "the tree, which roots are no part of")


def _with_root(case: Case, root: str) -> PinnedSpec:
    from pinfold.spec import Containment, Filesystem, Spec, WritableRoot

    layer = Spec(
        containment=Containment(filesystem=Filesystem(writable_roots=(WritableRoot(root),)))
    )
    resolved = resolve([case.pinned.spec, layer], Catalog([case.provider]))
    return attrs.evolve(case.pinned, spec=resolved)
