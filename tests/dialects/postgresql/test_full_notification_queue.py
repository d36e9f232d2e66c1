"""The server's queue of notifications is full: publishes commit, and doctor says why."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from queue_over_sql import QueueService
from queue_over_sql.database import notify
from queue_over_sql.dialects.postgresql import checkup, notifications
from queue_over_sql.observability import diagnose
from queue_over_sql.testing.servers.postgresql import PostgresqlServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

pytestmark = pytest.mark.engines("postgresql")

PAGES = 64
# A notification of this size fills a page.
SIZE, SMALL = 7_900, 40
# The first release whose queue can be smaller than a million pages.
LIMITED = 17


class SmallQueue(PostgresqlServer):
    """A server whose queue of notifications is soon full, if its release can have such a one."""

    @property
    def is_limited(self) -> bool:
        said = subprocess.run(
            [self._postgres, "--version"], capture_output=True, text=True, check=True
        ).stdout
        return int(said.split()[2].partition(".")[0]) >= LIMITED

    def command(self) -> list[str]:
        pages = ["-c", f"max_notify_queue_pages={PAGES}"] if self.is_limited else []
        return [*super().command(), *pages]


@pytest.fixture
def full(engine_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine on a server with a full queue: a session listens, and stays in a transaction."""
    assert "postgresql" == engine_name
    with SmallQueue() as server:
        if not server.is_limited:
            # There it takes 8 GiB, so a few pages count as many.
            monkeypatch.setattr(notifications, "NEARLY_FULL", 0.9 * PAGES / 2**20)
            monkeypatch.setattr(checkup, "CROWDED", 0.8 * PAGES / 2**20)
        engine = create_engine(server.create_database("full"))
        holder = engine.connect()
        holder.execute(text("LISTEN others"))
        holder.commit()
        holder.execute(text("SELECT 1"))
        fill = text("SELECT pg_notify('others', repeat('x', :size) || :n)")
        # Small ones fill the rest of the last page.
        for size, most in ((SIZE, PAGES), (SMALL, SIZE // SMALL)):
            with engine.connect() as filler, contextlib.suppress(OperationalError):
                for number in range(most):
                    filler.execute(fill, {"size": size, "n": number})
                    filler.commit()
        yield engine
        holder.close()
        engine.dispose()


def test_publishes_commit_while_the_queue_is_full(
    full: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a caller's transaction and in the service's own; who holds the queue is told."""
    monkeypatch.setattr(notify, "_BURST_SECONDS", 0)
    service = QueueService(full)
    queue = service.create_queue("jobs")
    with full.begin() as caller:
        queue.publish("in the caller's transaction", connection=caller)
    queue.publish("in one of its own")
    assert 2 == len(queue.consume(3))
    (finding,) = [each for each in diagnose(service) if each.about == "notifications"]
    assert "full" in finding.text
    assert "idle in transaction" in finding.text
    assert "pg_terminate_backend" in finding.advice
    service.stop()
