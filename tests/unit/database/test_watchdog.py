"""What the watchdog does with a connection on which a caller waits for an answer."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine, text

from queue_over_sql.database.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest


class _Server:
    """Says of all sessions that it works on nothing for them, after ``meanwhile``."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = int

    def ask(self, waiting: Sequence[Connection], quiet: float) -> Sequence[Connection]:
        del quiet
        self.meanwhile()
        return waiting


class _AtOnce:
    """Runs at once what a thread would run."""

    def start(self, name: str, do: Callable[..., object], *arguments: Any) -> None:
        del name
        do(*arguments)

    def event(self) -> None:
        """Nobody waits for it."""


def test_a_wait_that_ends_while_the_server_is_asked_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To ask may take seconds, in which a handler gets its answer and works on."""
    severed: list[Any] = []
    monkeypatch.setattr(
        "queue_over_sql.database.watchdog.sever", lambda _, driver: severed.append(driver)
    )
    server, runtime = _Server(), _AtOnce()
    watchdog = Watchdog(runtime, 5, weakref.WeakMethod(server.ask))  # type: ignore[arg-type]
    with create_engine("sqlite://").connect() as connection:
        for answered in (True, False):
            with ExitStack() as waits:
                waits.enter_context(watchdog.waiting(connection))
                server.meanwhile = waits.close if answered else int
                for _ in range(12):
                    watchdog.poll()
            assert bool(severed) is not answered


def test_each_wait_is_asked_about_in_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another one was asked about meanwhile.

    Its time began again then. So if the ways of all connections were lost at once, a heartbeat that
    began after another call waited for 30 s, and its consumer expired.
    """
    lost: dict[Any, int] = {}
    engines = [create_engine("sqlite://") for _ in range(2)]
    server = _Server()
    watchdog = Watchdog(_AtOnce(), 5, weakref.WeakMethod(server.ask))  # type: ignore[arg-type]
    with ExitStack() as stack:
        connections = [stack.enter_context(engine.connect()) for engine in engines]
        for number in range(12):
            monkeypatch.setattr(
                "queue_over_sql.database.watchdog.sever",
                lambda _, driver, number=number: lost.setdefault(driver, number),
            )
            if number in {0, 3}:
                stack.enter_context(watchdog.waiting(connections[number // 3]))
            watchdog.poll()
        drivers = [connection.connection.dbapi_connection for connection in connections]
    assert [4, 7] == [lost[driver] for driver in drivers]


def _watchdog() -> Watchdog:
    return Watchdog(_AtOnce(), 5, weakref.WeakMethod(_Server().ask))  # type: ignore[arg-type]


def test_each_statement_of_a_handler_is_a_wait() -> None:
    """One that is run for many rows waits for the database, too."""
    watchdog, engine = _watchdog(), create_engine("sqlite://")
    watchdog.follow(engine)
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        raw.create_function("waits", 0, lambda: len(watchdog.waits))
        watchdog.note_statements(connection)
        connection.execute(text("CREATE TABLE seen (row INTEGER, waits INTEGER)"))
        add = text("INSERT INTO seen VALUES (:row, waits())")
        connection.execute(add, {"row": 1})
        connection.execute(add, [{"row": 2}, {"row": 3}])
        found = connection.execute(text("SELECT row, waits FROM seen ORDER BY row")).all()
    assert [(1, 1), (2, 1), (3, 1)] == [tuple(row) for row in found]


def test_a_forked_child_does_not_wait_as_its_parent_did() -> None:
    """A wait of the parent never ends in a child, which would close its connections for it."""
    watchdog = _watchdog()
    with watchdog.waiting_briefly(), watchdog.waiting():
        child = os.fork()
        if not child:
            os._exit(len(watchdog.waits) + len(watchdog.prompt_waits))
        _, status = os.waitpid(child, 0)
        assert [2, 1] == [len(watchdog.waits), len(watchdog.prompt_waits)]
    assert 0 == os.waitstatus_to_exitcode(status)
