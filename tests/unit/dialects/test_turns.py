"""The turns of threads that write to SQLite."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from queue_over_sql.dialects.sqlite import turns as module
from queue_over_sql.dialects.sqlite.turns import Turns
from tests.waiting import wait_until

if TYPE_CHECKING:
    import pytest
    from sqlalchemy import Connection

ONE, OTHER = (cast("Connection", object()) for _ in range(2))


def lent() -> Turns:
    """Turns that two connections take."""
    turns = Turns()
    for connection in (ONE, OTHER):
        turns.lend(connection)
    return turns


def begun(turns: Turns, connection: Connection) -> threading.Thread:
    """A thread that waits for the turn of a transaction."""
    thread = threading.Thread(target=turns.begin, args=(connection,), daemon=True)
    thread.start()
    return thread


def test_one_begins_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a transaction wakes who waits, also that of a single act."""
    monkeypatch.setattr(module, "_PATIENCE", 10)
    turns = lent()
    turns.begin(ONE)
    waiting = begun(turns, OTHER)
    assert waiting.is_alive()
    turns.end(ONE)
    waiting.join(5)
    assert not waiting.is_alive()
    turns.end(OTHER)
    turns.lend(ONE)
    with turns.one():
        waiting = begun(turns, ONE)
        assert waiting.is_alive()
    waiting.join(5)
    assert not waiting.is_alive()


def test_it_holds_up_nobody_for_long() -> None:
    """Who waited for long goes on without a turn, and does not end that of another."""
    turns = lent()
    turns.begin(ONE)
    turns.begin(OTHER)
    turns.end(OTHER)
    waiting = begun(turns, OTHER)
    with turns.one():
        waiting.join(5)
    assert not waiting.is_alive()
    turns.end(ONE)
    turns.end(ONE)


def test_a_transaction_has_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may end its transaction and begin another; only connections that were lent wait."""
    monkeypatch.setattr(module, "_PATIENCE", 10)
    turns = lent()
    turns.begin(ONE)
    turns.begin(ONE)
    turns.begin(cast("Any", object()))
    turns.end(ONE)
    turns.begin(OTHER)


def test_a_forked_child_waits_for_no_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those threads do not exist there."""
    monkeypatch.setattr(module, "_PATIENCE", 10)
    turns = lent()
    turns.begin(ONE)
    turns.forked()
    turns.lend(OTHER)
    thread = begun(turns, OTHER)
    wait_until(lambda: not thread.is_alive())
