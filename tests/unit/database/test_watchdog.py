"""What the watchdog does with a connection on which a caller waits for an answer."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine

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
