"""When a connection is kept for its user's next transaction, and when it is given back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from sqlalchemy import create_engine, event

from queue_over_sql.database import sessions as kept_connection
from queue_over_sql.database.sessions import KeptConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/some.db")
    yield engine
    engine.dispose()


@pytest.fixture
def broken() -> list[str]:
    """Connections of the service that have broken."""
    return []


@pytest.fixture
def waits() -> list[str]:
    """Waits for an answer that comes at once."""
    return []


@pytest.fixture
def kept(engine: Engine, broken: list[str], waits: list[str]) -> Iterator[KeptConnection]:
    @contextlib.contextmanager
    def briefly() -> Iterator[None]:
        waits.append("brief")
        yield
        waits.remove("brief")

    kept = KeptConnection(engine.connect, lambda: len(broken), briefly)
    yield kept
    kept.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock on."""
    now = [1000.0]
    monkeypatch.setattr(kept_connection, "time", mock.Mock(monotonic=lambda: now[0]))

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def test_it_stays_while_nothing_speaks_against(
    kept: KeptConnection, clock: Callable[[float], None]
) -> None:
    """The same one, again and again."""
    first = kept.take()
    for _ in range(3):
        kept.leave(first)
        clock(0.05)
        assert kept.take() is first
    kept.leave(first)
    kept.close()
    assert first.closed


@pytest.mark.parametrize("pauses", [[0.2], [0.09] * 400], ids=["pause", "age"])
def test_it_goes_back_after_a_pause_and_of_age(
    kept: KeptConnection, clock: Callable[[float], None], pauses: list[float]
) -> None:
    """The pool asks whether it lives, and may find it too old."""
    first = taken = kept.take()
    for seconds in pauses:
        kept.leave(taken)
        clock(seconds)
        taken = kept.take()
    assert first.closed
    assert not taken.closed
    taken.close()


def test_it_is_thrown_away_when_others_broke(
    kept: KeptConnection, clock: Callable[[float], None], broken: list[str], engine: Engine
) -> None:
    """An outage: the handler must not meet it.

    The pool does not ask the server to roll back. When that fails, SQLAlchemy logs a traceback.
    """
    thrown_away: list[object] = []
    event.listen(engine, "invalidate", lambda connection, *_: thrown_away.append(connection))
    first = kept.take()
    kept.leave(first)
    broken.append("a session")
    second = kept.take()
    assert first.closed
    assert 1 == len(thrown_away)
    kept.leave(second)
    assert kept.take() is second
    second.close()
    del clock


@pytest.mark.parametrize("again", [False, True], ids=["close", "take"])
def test_its_rollback_before_the_pool_is_a_wait(
    engine: Engine,
    kept: KeptConnection,
    clock: Callable[[float], None],
    waits: list[str],
    again: bool,
) -> None:
    """Else a lost network would stop its user for ever."""
    kept.leave(kept.take())
    noted: list[list[str]] = []
    event.listen(engine.pool, "reset", lambda *_: noted.append(list(waits)))
    clock(0.2)
    if again:
        kept.leave(kept.take())
    kept.close()
    assert noted[0] == ["brief"]
    assert not waits
