"""Whose sessions are when a thread has ended."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from queue_over_sql.database.sessions import Session, ThreadSessions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    options = {"check_same_thread": False}
    engine = create_engine(f"sqlite:///{tmp_path}/some.db", connect_args=options)
    yield engine
    engine.dispose()


def test_the_session_of_an_ended_thread_has_one_owner(engine: Engine) -> None:
    """The next thread gets it, and the pool lends its connection to nobody beside.

    An exception remembers the ended thread's object in a reference cycle, as when its first try to
    connect failed. Once the pool got the connection back, too. What was acked on it then was in
    the transaction of somebody else, who rolled it back.
    """
    refusals: list[OSError] = []

    def make(durable: bool) -> Session:
        del durable
        if refusals:
            raise refusals.pop()
        return Session(engine.connect(), lambda _: contextlib.nullcontext())

    sessions = ThreadSessions(make, lambda: None)
    used: list[object] = []

    def use() -> None:
        session = sessions.borrow(durable=False)
        used.append(session.connection.connection.dbapi_connection)
        sessions.give_back(session)

    def fail_and_use() -> None:
        refusals.append(OSError("there is no server yet"))
        try:
            use()
        except OSError as error:
            error.itself = error  # type: ignore[attr-defined]
        use()

    use()
    for work in (fail_and_use, use):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gc.collect()
    with engine.connect() as other:
        beside = other.connection.dbapi_connection
    sessions.close()
    _, first, second = used
    assert first is second
    assert beside is not second
