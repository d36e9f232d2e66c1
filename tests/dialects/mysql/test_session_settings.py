"""Settings of MySQL's sessions change neither what is stored nor what a caller is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text

from queue_over_sql import DuplicateKey, Publication, QueueService
from queue_over_sql.service import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("mysql", "mariadb")


class Settings:
    """What each new session of an engine gets set."""

    def __init__(self, database: TestDatabase, **options: Any) -> None:
        self.engine: Engine = create_engine(database.url, **options)
        self.statements: list[str] = []
        event.listen(self.engine, "connect", self._apply)

    def _apply(self, raw: Any, _record: object) -> None:
        with raw.cursor() as cursor:
            for statement in self.statements:
                cursor.execute(statement)


@pytest.fixture
def settings(database: TestDatabase) -> Iterator[Settings]:
    """The settings of a user's engine."""
    found = Settings(database)
    yield found
    found.engine.dispose()


@pytest.fixture
def stepping(settings: Settings) -> Iterator[Queue]:
    """A queue whose service connects anew after the distance of ids has changed."""
    service = QueueService(settings.engine)
    queue = service.create_queue("jobs")
    queue.publish_many(["before", "the change"])
    queue.purge()
    settings.statements.append("SET SESSION auto_increment_increment = 3")
    parts_of(service).connections.leave()
    yield queue
    service.stop()


def _replicate(engine: Engine, ids: list[int]) -> None:
    """Insert another server's messages, between the ids of this one."""
    with engine.begin() as connection:
        for number in ids:
            connection.execute(
                text(
                    "INSERT INTO queue_jobs (id, payload, priority, published_at, scheduled_at,"
                    " available_at) VALUES (:id, :payload, 0, 1, 1, 1)"
                ),
                {"id": number, "payload": '"theirs"'},
            )


def test_ids_are_those_of_the_session_that_inserts(stepping: Queue, settings: Settings) -> None:
    """Also after a reconnect and beside a replica's rows, so that a cancel hits one's own."""
    ours = stepping.publish_many(["a", "b", "c"])
    _replicate(settings.engine, [one.id + 1 for one in ours])
    found = {message.id: message.payload for message in stepping.messages().list()}
    assert ["a", "b", "c"] == [found[one.id] for one in ours]
    for one in ours:
        assert stepping.cancel(one.id)
    assert ["theirs"] * 3 == [message.payload for message in stepping.messages().list()]


def test_a_refused_batch_takes_back_its_own(stepping: Queue, settings: Settings) -> None:
    """In a caller's transaction, of which nothing else is undone: not another's message."""
    stepping.publish("taken", key="k")
    with settings.engine.begin() as caller:
        (first,) = stepping.publish_many(["earlier"], connection=caller)
        _replicate(settings.engine, [first.id + 4, first.id + 5])
        batch = [Publication(number) for number in range(300)]
        with pytest.raises(DuplicateKey):
            stepping.publish_many([*batch, Publication("x", key="k")], connection=caller)
    left = [message.payload for message in stepping.messages().list()]
    assert ["earlier", "taken", "theirs", "theirs"] == sorted(left)
