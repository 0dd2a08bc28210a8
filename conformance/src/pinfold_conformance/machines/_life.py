"""The life machine: instances made, used, paused, lost and ended in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from pinfold.errors import Lost, PinfoldError
from pinfold.provider import InstanceStatus, Owner, Pausable
from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, expect_raises
from pinfold_conformance._guard import GuardedInstance, guarded
from pinfold_conformance._trace import Step
from pinfold_conformance.machines._base import Choose, Machine

__all__ = ["LifeMachine"]

MOST = 3


@attrs.define
class One:
    """An instance and what the model knows of it."""

    instance: GuardedInstance
    state: InstanceStatus = InstanceStatus.RUNNING
    #: Ended by others, who may have left something of it: a provider lists that for gc (LC-9).
    lost: bool = False
    files: dict[str, bytes] = attrs.field(factory=dict)


class LifeMachine(Machine):
    """At most three instances at a time; each step names one by its number."""

    name: ClassVar[str] = "life"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.all: list[One] = []

    async def reset(self) -> None:
        await self.close()
        self.all = []

    async def close(self) -> None:
        with self.case.site.ending():
            for one in self.all:
                try:
                    await self.case.site.destroy(one.instance)
                except (PinfoldError, AssertionError):
                    continue  # the ledger still has it

    def _living(self) -> list[int]:
        return [n for n, one in enumerate(self.all) if one.state is not InstanceStatus.ABSENT]

    def choose(self, choose: Choose) -> Sequence[Step]:
        living = self._living()
        kinds = ["make"] if len(living) < MOST else []
        if self.all:
            kinds += ["write", "read", "status", "destroy", "destroy"]
            if self.case.pinned.spec.target is not None:
                kinds.append("exec")
            if self.case.features.attach:
                kinds += ["attach", "list"]
            if self.case.features.pause:
                kinds += ["pause", "resume"]
            kinds.append("lose")
        kind = choose.of(kinds)
        if kind == "make":
            return [Step("make"), Step("write", {"one": len(self.all), "name": "a"})]
        one = choose.number(0, len(self.all) - 1)
        return [
            Step(kind, {"one": one, "name": choose.of(["a", "b"])}),
            Step("status", {"one": one}),
        ]

    async def apply(self, step: Step) -> None:
        if step.do == "make":
            self.all.append(One(await self.case.site.make()))
            return
        number = int(step.args["one"])
        if number >= len(self.all):
            return  # its make was minimised away
        await self._on(self.all[number], step)

    async def _on(self, one: One, step: Step) -> None:
        instance, site = one.instance, self.case.site
        match step.do:
            case "status":
                equal(await instance.status(), one.state, "status")
            case "destroy":
                await instance.destroy()
                site.ledger.forget(instance.ref)
                one.state, one.lost = InstanceStatus.ABSENT, False
            case "lose":
                if await site.lane.lose(instance.ref):
                    one.state, one.lost = InstanceStatus.ABSENT, True
            case "list":
                owner = Owner(store=site.ledger.run)
                found = {ref.id for ref in await self.case.provider.list(owner, site.context())}
                listed = instance.ref.id in found
                if not one.lost and listed != (one.state is not InstanceStatus.ABSENT):
                    raise CheckFailed(f"an instance that is {one.state} is listed: {listed}")
            case "attach":
                await self._attach(one)
            case "pause" | "resume":
                await self._pause(one, step.do)
            case _:
                await self._use(one, step)

    async def _attach(self, one: One) -> None:
        site, ref = self.case.site, one.instance.ref
        if one.state is InstanceStatus.ABSENT:
            with expect_raises(Lost, what="attach to what is gone"):
                await self.case.provider.attach(ref, self.case.pinned, site.context())
        elif one.state is InstanceStatus.RUNNING:
            await one.instance.detach()
            inner = await self.case.provider.attach(ref, self.case.pinned, site.context())
            one.instance = guarded(inner, site.meter)

    async def _pause(self, one: One, what: str) -> None:
        instance: object = one.instance
        if not isinstance(instance, Pausable) or one.state is InstanceStatus.ABSENT:
            return
        if what == "pause":
            await instance.pause()
            one.state = InstanceStatus.PAUSED
        else:
            await instance.resume()
            one.state = InstanceStatus.RUNNING

    async def _use(self, one: One, step: Step) -> None:
        if one.state is InstanceStatus.PAUSED:
            return  # what a paused instance does with a call is its own affair
        name = str(step.args["name"])
        if one.state is InstanceStatus.ABSENT:
            with expect_raises(Lost, what=f"{step.do} on what is gone"):
                await self._call(one, step.do, name)
            return
        await self._call(one, step.do, name)

    async def _call(self, one: One, what: str, name: str) -> None:
        from pinfold.provider import ExecRequest

        path = WORKSPACE / name
        match what:
            case "write":
                data = f"{name} of {one.instance.ref.id}".encode()
                await one.instance.files.write(path, data)
                one.files[name] = data
            case "read":
                if name in one.files or one.state is InstanceStatus.ABSENT:
                    data = await one.instance.files.read(path)
                    equal(data, one.files.get(name), f"{name} of an instance")
            case "exec":
                request = ExecRequest(shell=self.case.dialect.load(name))
                result = await one.instance.exec(request)
                equal(result.stdout, one.files.get(name, b""), f"{name}, by a command")
            case _:
                raise CheckFailed(f"there is no step {what!r}")

    async def audit(self) -> None:
        for one in self.all:
            equal(await one.instance.status(), one.state, "status, at the end")
            if one.state is InstanceStatus.RUNNING:
                names = [entry.path.name for entry in await one.instance.files.list(WORKSPACE)]
                equal(names, sorted(one.files), "the files of an instance, at the end")
