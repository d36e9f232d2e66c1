"""The lock for which threads wait before they write to SQLite."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from queue_over_sql.database import write_lock as module
from queue_over_sql.database.write_lock import WriteLock
from tests.waiting import wait_until

if TYPE_CHECKING:
    import pytest
    from sqlalchemy import Connection

ONE, OTHER = (cast("Connection", object()) for _ in range(2))


def lent() -> WriteLock:
    """A lock for which two connections wait."""
    lock = WriteLock()
    for connection in (ONE, OTHER):
        lock.register(connection)
    return lock


def begun(lock: WriteLock, connection: Connection) -> threading.Thread:
    """A thread that waits to begin a transaction."""
    thread = threading.Thread(target=lock.acquire, args=(connection,), daemon=True)
    thread.start()
    return thread


def test_one_begins_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a transaction wakes who waits, also that of a single operation."""
    monkeypatch.setattr(module, "_TIMEOUT", 600)
    lock = lent()
    lock.acquire(ONE)
    waiting = begun(lock, OTHER)
    assert waiting.is_alive()
    lock.release(ONE)
    waiting.join(60)
    assert not waiting.is_alive()
    assert {OTHER} == lock._having
    lock.release(OTHER)
    lock.register(ONE)
    with lock.one_act():
        waiting = begun(lock, ONE)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()
    assert {ONE} == lock._having


def test_it_holds_up_nobody_for_long() -> None:
    """Who waited for long goes on without the lock, and does not release that of another."""
    lock = lent()
    lock.acquire(ONE)
    lock.acquire(OTHER)
    lock.release(OTHER)
    waiting = begun(lock, OTHER)
    with lock.one_act():
        waiting.join(60)
    assert not waiting.is_alive()
    lock.release(ONE)
    lock.release(ONE)


def test_a_transaction_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may end its transaction and begin another; only registered connections wait."""
    monkeypatch.setattr(module, "_TIMEOUT", 600)
    lock = lent()
    for connection in (ONE, ONE, cast("Any", object())):
        thread = begun(lock, connection)
        thread.join(60)
        assert not thread.is_alive()
    assert {ONE} == lock._having
    lock.release(ONE)
    lock.acquire(OTHER)
    assert {OTHER} == lock._having


def test_a_forked_child_waits_for_no_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those threads do not exist there."""
    monkeypatch.setattr(module, "_TIMEOUT", 600)
    lock = lent()
    lock.acquire(ONE)
    lock.forked()
    lock.register(OTHER)
    thread = begun(lock, OTHER)
    wait_until(lambda: not thread.is_alive())
