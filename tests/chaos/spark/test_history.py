"""The driver of an export is killed repeatedly: no message is lost or exported twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from queue_over_sql.queue import Queue
from queue_over_sql.service import QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.chaos.processes import Crew
from tests.chaos.roles.spark_export import Arguments

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(900)]

Place = tuple[str, int]
EACH = 50
LONGEST_WAIT = 300.0


@pytest.mark.engines("sqlite")
def test_killed_exports_lose_and_double_nothing(
    database: TestDatabase, service: QueueService, crew: Crew, tmp_path: Path
) -> None:
    """Killed before the commit, among the moves and among the removals, with work going on.

    Each message that was ever finished is in the history once in the end, and the archive, from
    which exports were allowed to remove, is empty.
    """
    queues = [service.create_queue(name, archive="all") for name in ("jobs", "mails", "orders")]
    folder, finished = tmp_path / "history", Counter[Place]()
    for die in ("staged", "moving", "pruning"):
        finished.update(_finish(queues))
        driver = crew.spawn(Arguments(database.url, str(folder), die))
        assert -9 == driver.join(LONGEST_WAIT), driver.errors()
        # What can be seen at any moment is not there twice.
        assert not [each for each, times in _seen(folder).items() if times > 1]
    finished.update(_finish(queues))
    last = crew.spawn(Arguments(database.url, str(folder)))
    last.expect("exported", LONGEST_WAIT)
    assert 0 == last.join(LONGEST_WAIT)
    assert finished == _seen(folder)
    assert [0, 0, 0] == [queue.stats().archived for queue in queues]
    assert [] == list((folder / "_staging").iterdir())


def _finish(queues: Sequence[Queue]) -> Iterator[Place]:
    for queue in queues:
        queue.publish_many([{"n": number} for number in range(EACH)])
        messages = queue.consume(EACH)
        assert EACH == len(messages)
        queue.ack(messages)
        yield from ((queue.name, message.id) for message in messages)


def _seen(folder: Path) -> Counter[Place]:
    """What is in the files, as any reader of Parquet sees them."""
    found = Counter[Place]()
    for file in folder.glob("queue=*/date=*/*.parquet"):
        queue = file.parents[1].name.removeprefix("queue=")
        ids = pq.read_table(file, columns=["id"], partitioning=None)["id"].to_pylist()
        found.update((queue, each) for each in ids)
    return found
