"""`kill -9` of Spark's driver and of its Python workers: nothing is lost, nothing comes twice.

One driver runs a query on each engine, each with another sink, so that a kill at a chosen point of
one query hits the others wherever they are. All points of all queries, and more, are gone through
by ``scripts/chaos/spark``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from queue_over_sql.testing.servers import Server
from tests.chaos.processes import Crew
from tests.chaos.spark.crashes import Victim
from tests.chaos.spark.runs import Run

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(1200)]

MESSAGES = 1_500
SMALL = {"maxMessagesPerTrigger": "300", "messagesPerPartition": "110"}
SINKS = {"postgresql": "queue", "mariadb": "parquet", "sqlite": "batches"}

# Query, point, who is killed, and how often it passes there before.
KILLS: list[tuple[str, str, Victim, int]] = [
    ("postgresql", "after_claim", "driver", 0),
    ("postgresql", "in_claim", "worker", 1),
    ("postgresql", "in_publish", "driver", 1),
    ("postgresql", "after_publish", "driver", 2),
    ("mariadb", "after_executor_claim", "worker", 0),
    ("mariadb", "in_read", "driver", 1),
    ("mariadb", "in_ack", "driver", 1),
    ("sqlite", "in_work", "worker", 1),
    ("sqlite", "after_write", "driver", 1),
]


class Servers(Protocol):
    """The servers of this test run."""

    def get(self, engine: str) -> Server:
        """The server of an engine, started when first needed."""
        ...


NewDatabase = Callable[[str], str]


@pytest.fixture
def new_database(servers: Servers, tmp_path: Path) -> Iterator[NewDatabase]:
    """Makes a fresh database of an engine and returns its URL."""
    with ExitStack() as stack:

        def make(engine: str) -> str:
            name = f"test_{uuid.uuid4().hex[:12]}"
            if engine == "sqlite":
                return f"sqlite:///{tmp_path / name}.db"
            server = servers.get(engine)
            stack.callback(server.drop_database, name)
            return server.create_database(name)

        yield make


def test_no_kill_loses_or_doubles_a_message(
    new_database: NewDatabase, crew: Crew, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed at nine points of claim, read, sink and ack, one after another."""
    wanted = request.config.getoption("--engines")
    run = Run(crew, tmp_path)
    for engine, sink in SINKS.items():
        if wanted is None or engine in wanted.split(","):
            run.add(engine, new_database(engine), sink, messages=MESSAGES, **SMALL)
            for query, point, victim, passes in KILLS:
                if query == engine:
                    run.flags.arm(query, point, victim=victim, passes=passes)
    run.drain(most_lives=20)
    assert [] == run.flags.left()
    run.check()
