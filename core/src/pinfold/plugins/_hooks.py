"""Calling the embedders' hooks, each under its own guard (PR-2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pluggy

from pinfold.errors import Unavailable
from pinfold.plugins._entries import Entries, Loaded, Problem
from pinfold.plugins._hookspecs import PROJECT, HookSpecs, TemplateRevision

if TYPE_CHECKING:
    from pinfold.connections import Secret
    from pinfold.events import AuditRecord, Event

__all__ = ["Hooks", "hooks"]

_log = logging.getLogger("pinfold.plugins")


class Hooks:
    """The registered plugins' hooks.

    Args:
        discover: also load the entry points of `pinfold.plugins`, when a hook is first called.
    """

    def __init__(self, *, discover: bool = False) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._discover = discover
        self._loading = threading.RLock()
        self.problems: list[Problem] = []

    def register(self, plugin: object, name: str | None = None) -> None:
        """Register an object's hooks.

        Raises:
            pluggy.PluginValidationError: a hook that does not exist, or with other arguments.
            ValueError: the name or the object is registered already.
        """
        registered = self._manager.register(plugin, name=name)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError:
            self._manager.unregister(name=registered)
            raise

    def unregister(self, plugin: object) -> None:
        """Take an object's hooks out again."""
        self._manager.unregister(plugin)

    @property
    def are_loaded(self) -> bool:
        """No hook that is called now has to load anything first."""
        return not self._discover

    def load(self) -> None:
        """Load the installed plugins now; the broken are kept in `problems`, with their errors."""
        if not self._discover:
            return
        with self._loading:  # whoever comes meanwhile waits: no record may go by unheard
            self._load()

    def _load(self) -> None:
        if self._discover:
            for item in Entries("pinfold.plugins").load_all():
                problem = item if isinstance(item, Problem) else self._adopt(item)
                if problem is not None:
                    self.problems.append(problem)
                    _log.warning("plugin %s is not used: %s", problem.name, problem)
            self._discover = False

    def _adopt(self, item: Loaded) -> Problem | None:
        try:
            self.register(item.value, name=item.name)
        except Exception as exc:  # noqa: BLE001 - shown as this plugin's error
            return Problem(
                name=item.name,
                code="invalid",
                message=f"its hooks are not accepted: {exc}",
                hint=f"mend or uninstall {item.dist}",
                dists=(item.dist,),
            )
        return None

    def _each(self, hook: str, **kwargs: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        self.load()
        for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            yield impl.plugin_name, partial(impl.function, *(kwargs[arg] for arg in impl.argnames))

    def _first(self, hook: str, **kwargs: Any) -> Any:
        for plugin, call in self._each(hook, **kwargs):
            try:
                answer = call()
            except Exception as exc:
                raise Unavailable(
                    f"plugin {plugin!r} failed in {hook}: {type(exc).__name__}",
                    hint="see the cause; the plugin is the embedder's",
                ) from exc
            if answer is not None:
                return answer
        return None

    def _tell(self, hook: str, **kwargs: Any) -> None:
        for plugin, call in self._each(hook, **kwargs):
            try:
                call()
            except Exception as exc:  # noqa: BLE001 - one listener must not silence the others
                # The type alone: the text may hold what the event holds (EV-3).
                _log.warning("plugin %s failed in %s: %s", plugin, hook, type(exc).__name__)

    @property
    def audits(self) -> bool:
        """Whether anybody listens to audit records; without a listener none needs to be made."""
        self.load()
        return bool(self._manager.hook.pinfold_audit.get_hookimpls())

    def connection(self, name: str) -> Mapping[str, str | Secret] | None:
        """Ask for a connection's values; the first answer counts.

        Raises:
            Unavailable: a plugin failed.
        """
        answer: Mapping[str, str | Secret] | None = self._first("pinfold_connection", name=name)
        return answer

    def template(self, name: str) -> TemplateRevision | None:
        """Ask for a template's current revision; the first answer counts.

        Raises:
            Unavailable: a plugin failed.
        """
        answer: TemplateRevision | None = self._first("pinfold_template", name=name)
        return answer

    def event(self, event: Event) -> None:
        """Tell every plugin of an event."""
        self._tell("pinfold_event", event=event)

    def audit(self, record: AuditRecord) -> None:
        """Tell every plugin what a caller did."""
        self._tell("pinfold_audit", record=record)


@cache
def hooks() -> Hooks:
    """Return the process's hooks: what is installed, and what was registered here."""
    return Hooks(discover=True)
