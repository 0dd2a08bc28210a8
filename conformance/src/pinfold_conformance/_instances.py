"""The instances that checks are given: shared ones, one for each spec, or one of their own.

All of it runs in the event loop in which the target lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio
import attrs

from pinfold.errors import PinfoldError
from pinfold.provider import ExecRequest
from pinfold.spec import CREATE_TIMEOUT_SECONDS
from pinfold_conformance._blame import told_of
from pinfold_conformance._case import Case, Site
from pinfold_conformance._guard import GuardedInstance
from pinfold_conformance._options import Options
from pinfold_conformance._registry import Place
from pinfold_conformance._verdicts import Verdict
from pinfold_conformance.dialects import DIALECTS

__all__ = ["Instances", "Shared"]

_LOOK_S: Final = 10.0  # to find out how to speak to the guest


@attrs.define(eq=False)
class Shared:
    """The instance that checks share, or why there is none.

    Attributes:
        instance: it; None when it could not be made.
        failure: why not.
        facts: what was found out about it.
    """

    instance: GuardedInstance | None = None
    failure: str | None = None
    facts: dict[str, Any] = attrs.field(factory=dict)


class Instances:
    """Makes, lends and takes back what checks work on.

    Args:
        sites: the specs under test; a site learns its dialect when its first instance is made.
        options: of the run.
    """

    def __init__(self, sites: list[Site], options: Options) -> None:
        self._sites, self._options = sites, options
        self._shared: dict[int, Shared] = {}

    @property
    def living(self) -> Sequence[GuardedInstance]:
        """What is shared now, in the order in which it was made."""
        return [one.instance for one in self._shared.values() if one.instance is not None]

    async def make(self, number: int) -> GuardedInstance:
        """Make a fresh instance of a site.

        Raises:
            TimeoutError: it did not come.
        """
        limit = CREATE_TIMEOUT_SECONDS * self._options.scale
        with anyio.move_on_after(limit):
            return await self._sites[number].make()
        raise TimeoutError(f"create did not end within {limit:g} s")

    async def share(self, number: int, *, clean: bool = False) -> Shared:
        """Return the shared instance of a site; it is made when it is first asked for.

        Args:
            number: of the site.
            clean: the lane resets it first; where that fails it is replaced.
        """
        shared = self._shared.get(number)
        if shared is None:
            shared = self._shared[number] = Shared()
            try:
                shared.instance = await self.make(number)
            except Exception as exc:  # noqa: BLE001 - whatever the adapter raises
                shared.failure = f"the target could not be made: {told_of(exc)}"
                return shared
            await self._look(number, shared.instance, shared.facts)
        elif clean and shared.instance is not None:
            try:
                with anyio.fail_after(self._options.cleanup_s):
                    await self._sites[number].lane.reset(shared.instance.inner)
            except Exception as exc:  # noqa: BLE001 - the lane's own code
                await self._discard(number)
                shared = await self.share(number)
                shared.facts["reset"] = told_of(exc)
        return shared

    async def give(self, case: Case, number: int) -> str | None:
        """Give a case its instance, or return why it has none."""
        place = case.check.place
        try:
            if place is Place.OWN:
                case.target = await self.make(number)
            elif place is not Place.NONE:
                shared = await self.share(number, clean=place is Place.CLEAN)
                if shared.instance is None:
                    return shared.failure or "there is no instance"
                case.target = shared.instance
        except Exception as exc:  # noqa: BLE001 - whatever the adapter raises
            return f"the target could not be made: {told_of(exc)}"
        return None

    async def take_back(self, case: Case, number: int, verdict: Verdict) -> str | None:
        """Leave an instance as the next check may find it, or let go of it.

        Returns:
            What was wrong with ending the check's own instance, or None.
        """
        own = case.check.place is Place.OWN
        with anyio.move_on_after(self._options.cleanup_s, shield=True):
            try:
                if own:
                    await case.site.destroy(case.instance)
                elif verdict in (Verdict.FAIL, Verdict.ENGINE_ERROR):
                    await self._discard(number)  # nobody knows what it is like now
                else:
                    await case.tidy()
            except (PinfoldError, AssertionError) as exc:
                if own:
                    return f"its instance could not be destroyed: {told_of(exc)} (LC-9)"
                self._shared.pop(number, None)  # the ledger still has it
            return None
        if own:
            return f"destroy did not end within {self._options.cleanup_s:g} s (LC-9)"
        self._shared.pop(number, None)
        return None

    async def _discard(self, number: int) -> None:
        shared = self._shared.pop(number, None)
        if shared is not None and shared.instance is not None:
            await self._sites[number].destroy(shared.instance)

    def lost(self) -> None:
        """Forget them all: their event loop is gone; the ledger still names them."""
        self._shared.clear()

    def hopeless(self, number: int, failure: str) -> None:
        """Note that no instance of a site can be made, and why."""
        self._shared[number] = Shared(failure=failure)

    async def _look(self, number: int, instance: GuardedInstance, facts: dict[str, Any]) -> None:
        """Find out how to speak to the guest, and who it is."""
        site = self._sites[number]
        if self._options.dialect is None:
            for dialect in DIALECTS:
                script, answer = dialect.probe
                if await self._ask(instance, script) == answer:
                    self._sites[number] = site = attrs.evolve(site, dialect=dialect)
                    break
        facts["uid"] = (await self._ask(instance, site.dialect.uid())).strip().decode()

    async def _ask(self, instance: GuardedInstance, script: str) -> bytes:
        with anyio.move_on_after(_LOOK_S * self._options.scale):
            try:
                request = ExecRequest(shell=script, timeout_seconds=5)
                return (await instance.exec(request)).stdout
            except (PinfoldError, AssertionError):
                return b""
        return b""
