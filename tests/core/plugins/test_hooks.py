"""PR-1, EV: embedders' hooks are validated, guarded, and told of everything."""

from __future__ import annotations

import logging

import pluggy
import pytest

from pinfold.errors import Unavailable
from pinfold.events import AuditAction, AuditRecord, Event, EventType
from pinfold.plugins import Hooks, TemplateRevision, hookimpl

EVENT = Event(id="ev_1", type=EventType.READY, sandbox_id="sbx_1", generation=1, time="t")
RECORD = AuditRecord(id="ev_2", action=AuditAction.EXEC, sandbox_id="sbx_1", generation=1, time="t")


class Listener:
    def __init__(self):
        self.events, self.records = [], []

    @hookimpl
    def pinfold_event(self, event):
        self.events.append(event)

    @hookimpl
    def pinfold_audit(self, record):
        self.records.append(record)


def test_every_listener_is_told():
    hooks, one, two = Hooks(), Listener(), Listener()
    hooks.register(one)
    hooks.register(two)

    hooks.event(EVENT)
    hooks.audit(RECORD)

    assert one.events == two.events == [EVENT]
    assert one.records == two.records == [RECORD]


def test_an_unregistered_listener_is_told_no_more():
    hooks, one = Hooks(), Listener()
    hooks.register(one)
    hooks.unregister(one)

    hooks.event(EVENT)

    assert one.events == []


@pytest.mark.parametrize("order", [0, 1], ids=["broken first", "broken last"])
def test_pr2_a_listener_that_fails_silences_nobody_and_is_logged_without_payload(order, caplog):
    class Broken:
        @hookimpl
        def pinfold_event(self, event):
            raise RuntimeError("CANARY-77aa")

    hooks, good = Hooks(), Listener()
    for plugin in [Broken(), good] if order == 0 else [good, Broken()]:
        hooks.register(plugin)

    with caplog.at_level(logging.DEBUG, "pinfold"):
        hooks.event(EVENT)

    assert good.events == [EVENT]
    assert "RuntimeError" in caplog.text
    assert "CANARY-77aa" not in caplog.text


def test_a_hook_may_take_fewer_arguments():
    class Small:
        called = False

        @hookimpl
        def pinfold_event(self):
            Small.called = True

    hooks = Hooks()
    hooks.register(Small())
    hooks.event(EVENT)

    assert Small.called


class Misnamed:
    @hookimpl
    def pinfold_evnt(self, event):
        raise AssertionError


class Misargued:
    @hookimpl
    def pinfold_event(self, evnt):
        raise AssertionError


@pytest.mark.parametrize("plugin", [Misnamed, Misargued])
def test_pr1_hooks_are_validated_against_the_specs(plugin):
    hooks = Hooks()

    with pytest.raises(pluggy.PluginValidationError):
        hooks.register(plugin())
    hooks.event(EVENT)


def test_the_first_answer_counts():
    class One:
        @hookimpl
        def pinfold_template(self, name):
            return TemplateRevision(name=name, revision_id="tr_1", spec={}) if name == "a" else None

        @hookimpl
        def pinfold_connection(self, name):
            return {"host": name}

    hooks = Hooks()
    hooks.register(One())

    assert hooks.template("a").revision_id == "tr_1"
    assert hooks.template("b") is None
    assert hooks.connection("c") == {"host": "c"}


def test_a_source_that_fails_is_an_error_that_names_it():
    class Broken:
        @hookimpl
        def pinfold_connection(self, name):
            raise RuntimeError("CANARY-88bb")

    hooks = Hooks()
    hooks.register(Broken(), name="vault")

    with pytest.raises(Unavailable, match="vault") as caught:
        hooks.connection("c")
    assert "CANARY-88bb" not in str(caught.value)


def test_pr2_a_broken_installed_plugin_is_kept_with_its_error(monkeypatch):
    from pinfold.plugins import _hooks
    from pinfold.plugins._entries import Loaded, Problem

    class Stand:
        def __init__(self, group):
            assert group == "pinfold.plugins"

        def load_all(self):
            return [
                Problem(name="a", code="broken", message="kaput"),
                Loaded(name="b", value=Misnamed(), dist="dist-b"),
                Loaded(name="c", value=listener, dist="dist-c"),
            ]

    listener = Listener()
    monkeypatch.setattr(_hooks, "Entries", Stand)
    hooks = Hooks(discover=True)

    hooks.event(EVENT)

    assert listener.events == [EVENT]
    assert [(problem.name, problem.code) for problem in hooks.problems] == [
        ("a", "broken"),
        ("b", "invalid"),
    ]
    assert "pinfold_evnt" in hooks.problems[1].message
