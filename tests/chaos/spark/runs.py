"""Runs of streaming queries through any number of kills, and the account at the end."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from queue_over_sql import QueueService
from tests.chaos.account import archived
from tests.chaos.processes import Crew, Process
from tests.chaos.roles.spark_driver import Arguments, Query
from tests.chaos.spark.crashes import Flags
from tests.chaos.spark.sinks import batch_tokens, parquet_tokens, queue_tokens

LIFE = 600.0
"""Seconds until a life of the driver that does not end fails the test."""

TOO_LATE = ("connect back", "CANNOT_OPEN_SOCKET")
"""What Spark says when its Python processes need too long on a busy machine."""


@dataclasses.dataclass
class Run:
    """Queries of one driver, each with a queue that was filled before.

    Attributes:
        crew: starts the drivers.
        folder: of checkpoints, outputs and flags.
        queries: what runs.
        published: the tokens that were published for each query.
        lives: how often the driver was started.
    """

    crew: Crew
    folder: Path
    queries: list[Query] = dataclasses.field(default_factory=list)
    published: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    lives: int = 0

    @property
    def flags(self) -> Flags:
        """The crash points."""
        return Flags(self.folder / "flags")

    def add(
        self, name: str, url: str, sink: str, *, messages: int, queue: str = "jobs", **options: str
    ) -> Query:
        """Make and fill a queue, and read it by a query of this name."""
        folder = self.folder / name
        folder.mkdir()
        query = Query(name, url, str(folder), sink, queue, options)
        service = QueueService(url)
        try:
            source = service.create_queue(queue, archive="all" if sink == "batches" else "failed")
            if sink == "queue":
                service.create_queue(query.target)
            tokens = [f"{name}-{number:05}" for number in range(messages)]
            source.load({"token": token, "text": "x" * 50} for token in tokens)
        finally:
            service.stop()
        self.queries.append(query)
        self.published[name] = tokens
        return query

    def start(self, *, until_empty: bool = True) -> Process:
        """Begin a life of the driver."""
        self.lives += 1
        arguments = Arguments(
            [dataclasses.asdict(query) for query in self.queries],
            str(self.flags.folder),
            until_empty=until_empty,
        )
        return self.crew.spawn(arguments)

    def drain(self, most_lives: int) -> None:
        """Start the driver again and again, until it ends by itself with every queue empty."""
        while self.lives < most_lives:
            driver = self.start()
            code = driver.join(within=LIFE)
            if code == 0 and self._drained(driver):
                return
            if code not in (0, -9):
                raise AssertionError(driver.complaint(f"exit {code}"))
        raise AssertionError(f"not drained in {most_lives} lives; left: {self.flags.left()}")

    def _drained(self, driver: Process) -> bool:
        """Whether all queries ended well; Spark gives its own processes ten seconds to start."""
        driver.expect("started")
        said = driver.hear()
        if said["event"] == "failed" and not any(late in said["error"] for late in TOO_LATE):
            raise AssertionError(driver.complaint(said["error"]))
        return bool(said["event"] == "drained")

    def check(self) -> None:
        """Nothing lost, nothing twice, nothing left."""
        for query in self.queries:
            arrived, sent = Counter(arrived_at(query)), Counter(self.published[query.name])
            missing, excess = sent - arrived, arrived - sent
            account = (query.name, dict(missing.most_common(3)), dict(excess.most_common(3)))
            assert (query.name, {}, {}) == account
            assert [] == rows_left(query)
            if query.sink == "batches":
                assert sent == Counter(done_in_archive(query))


def arrived_at(query: Query) -> Sequence[str]:
    """The tokens in the sink of a query, with repetitions."""
    if query.sink == "parquet":
        return parquet_tokens(Path(query.folder) / "output")
    if query.sink == "queue":
        return queue_tokens(query.url, query.target)
    return batch_tokens(Path(query.folder))


def rows_left(query: Query) -> list[str]:
    """The tokens that are still in the queue."""
    return queue_tokens(query.url, query.queue)


def done_in_archive(query: Query) -> list[str]:
    """The tokens that were acknowledged into the archive."""
    engine = create_engine(query.url, poolclass=NullPool)
    try:
        return [token for token, outcome in archived(engine, query.queue) if outcome == "done"]
    finally:
        engine.dispose()
