"""Every kind of line of the diary is shown to those who may see what it is about, and to nobody else."""

from __future__ import annotations

import re
from pathlib import Path

import farm_tracker.state
import pytest
from farm_tracker.service.sight import Sight
from farm_tracker.state import State
from farm_tracker.state.model import Agent, Description, Device, TimingClass
from farm_tracker.state.notes import Note
from farm_tracker.state.state import Changes

from farm.target import Selector

SUBJECTS = {"device": "red-0", "lease": "red-0", "agent": "red", "job": "j", "attempt": "j.1"}
SUBJECTS["account"] = "alice"


def kinds():
    """Return the first words of all kinds of notes that the core writes."""
    texts = [it.read_text() for it in Path(farm_tracker.state.__path__[0]).glob("*.py")]
    return set(re.findall(r'"([a-z]+)\.[a-z]+"', "\n".join(texts)))


@pytest.fixture
def state():
    state = State()
    about = Description("red-0", (), {"colour": "red"}, TimingClass.NATIVE, ())
    agent = Agent("red", "p", "1", (), 0, "", "", ("red-0",))
    state.apply(Changes(agents={"red": agent}, devices={"red-0": Device(about, "red")}))
    return state


@pytest.mark.parametrize("kind", sorted(SUBJECTS))
def test_note_is_shown_by_labels_or_account(state, kind):
    note = Note(1, 0.0, f"{kind}.x", SUBJECTS[kind], "", account="alice")
    of_device = kind in ("device", "lease", "agent")
    of_account = kind in ("job", "lease", "attempt", "account")

    def shows(selector, account, what=note):
        return Sight(state, Selector.parse(selector), account).shows_note(what)

    assert shows("", "")
    assert shows("colour=red", "alice")
    assert shows("colour=blue", "") != of_device
    assert shows("", "bob") != of_account
    if of_device:
        gone = Note(1, 0.0, f"{kind}.x", "gone", "", account="alice")
        assert not shows("colour!=blue", "", gone)


def test_every_kind_of_note_is_known_and_others_are_hidden(state):
    assert kinds() == set(SUBJECTS)
    unknown = Note(1, 0.0, "secret.x", "y", "")
    assert Sight(state, Selector(()), "").shows_note(unknown)
    assert not Sight(state, Selector(()), "alice").shows_note(unknown)
    assert not Sight(state, Selector.parse("colour=red"), "").shows_note(unknown)
