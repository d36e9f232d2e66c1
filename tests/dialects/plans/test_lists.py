"""Lists by status: along the primary key, whatever an engine believes about the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import Publication, QueueService
from queue_over_sql.queue import core_of
from queue_over_sql.selection import operations as selection
from queue_over_sql.selection.selection import rows_of
from tests.dialects.plans.explain import plans
from tests.dialects.traffic import listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queue_over_sql import Queue
    from queue_over_sql.selection.selection import Selection
    from queue_over_sql.testing.plugin import TestDatabase
    from queue_over_sql.values.states import LiveStatus
    from tests.dialects.traffic import Traffic

LOADED, CLAIMED, PAGE = 20_000, 1_000, 50


@pytest.fixture
def loaded(database: TestDatabase) -> Iterator[tuple[Queue, Traffic]]:
    """A queue that was just loaded: the head is claimed, and no server has counted anything."""
    # No heartbeat and no reaper come between the lists.
    quiet: dict[str, Any] = {"consumer_timeout": 3600, "reaper_interval": 3600}
    with (
        listening(database.engine) as traffic,
        QueueService(database.url, **quiet) as service,
    ):
        queue = service.create_queue("jobs", archive="all", lease=3600)
        queue.load(range(LOADED))
        for _ in range(4):
            queue.ack(queue.consume(CLAIMED))
        queue.consume(CLAIMED)
        yield queue, traffic


@pytest.mark.timeout(120)
def test_a_common_status_is_listed_along_the_key(
    loaded: tuple[Queue, Traffic], database: TestDatabase
) -> None:
    """No index on the status is read, but so much of the primary key as the window has.

    Dead letters whose errors have no fingerprint yet are found in the index of errors.

    A list without a filter is one statement; one by its status first asks where the ids begin.
    """
    queue, traffic = loaded
    lists: dict[str, tuple[str, Callable[[], object]]] = {
        "ready": ("jobs.id", lambda: queue.messages(status="ready").list(PAGE)),
        "ready, later": ("jobs.id", lambda: queue.messages(status="ready").list(PAGE, 5_000)),
        "ready, last": ("jobs.id", lambda: _newest(queue.messages(status="ready"))),
        "claimed": ("jobs.id", lambda: queue.messages(status="claimed").list(PAGE)),
        "claimed, columns": ("jobs.id", lambda: _ids(queue.messages(status="claimed"), queue)),
        "errors": ("jobs_archive.err", lambda: list(core_of(queue).errors.marking())),
        "done": ("jobs_archive.id", lambda: queue.archive.messages(status="done").list(PAGE)),
    }
    wrong = {}
    for name, (expected, listed) in lists.items():
        sent = traffic.of(listed)
        edges = [each for each in sent if "min(" in each.text or "max(" in each.text]
        others = [each for each in sent if each not in edges and each.verb == "SELECT"]
        with database_of(queue).connect() as connection:
            found = list(plans(connection, database.engine, others))
        reads = {read for plan in found for read in plan.reads}
        if len(sent) > 2 or {expected} != reads:
            wrong[name] = "\n".join([str(len(sent)), *map(str, found)])
    assert 1 == len(traffic.of(lambda: queue.messages().list(PAGE)))
    assert not wrong, "\n\n".join(f"{name}: {found}" for name, found in wrong.items())


def _newest(chosen: Selection) -> object:
    return chosen.list(PAGE, newest_first=True)


def _ids(chosen: Selection, queue: Queue) -> object:
    return rows_of(chosen, [core_of(queue).context.tables.live.c.id], limit=PAGE)


def database_of(queue: Queue) -> Any:
    return core_of(queue).context.connections.engine


def test_a_rare_status_is_listed_as_if_it_were_common(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the messages are: few or many, in the first ids or beyond, either way round."""
    monkeypatch.setattr(selection, "_WINDOW", 4)
    queue = service.create_queue("jobs", archive="all", lease=3600)
    kinds = [0, 0, 3600, 0, 0, 0, 3600, 3600, 0, 3600] * 6
    ids = [queue.publish(n, delay=delay).id for n, delay in enumerate(kinds)]
    by_status: dict[LiveStatus, list[int]] = {
        "ready": [id_ for id_, delay in zip(ids, kinds, strict=True) if not delay],
        "delayed": [id_ for id_, delay in zip(ids, kinds, strict=True) if delay],
        "held": [],
    }
    by_status["claimed"], by_status["ready"] = by_status["ready"][:5], by_status["ready"][5:]
    assert by_status["claimed"] == [message.id for message in queue.consume(5)]
    for few in (3, 100):
        monkeypatch.setattr(selection, "_FEW", few)
        for status, there in by_status.items():
            chosen = queue.messages(status=status)
            for after in (None, ids[0], ids[20], ids[-1]):
                later = [id_ for id_ in there if after is None or id_ > after]
                before = [id_ for id_ in reversed(there) if after is None or id_ < after]
                for limit in (1, 7, 100):
                    assert later[:limit] == [m.id for m in chosen.list(limit, after)]
                    newest = chosen.list(limit, after, newest_first=True)
                    assert before[:limit] == [m.id for m in newest]
    queue.load([Publication(n) for n in range(1_100)])
    told: list[int] = []
    assert len(by_status["ready"]) + 1_100 == queue.messages(status="ready").remove(
        progress=told.append
    )
    assert [500, 1_000] == told[:2]
    assert by_status["delayed"] == [
        message.id for message in queue.messages(status="delayed").list()
    ]
