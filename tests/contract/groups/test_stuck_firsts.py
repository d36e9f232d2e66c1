"""A group whose first message may not be handed out keeps no other group back."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest
from sqlalchemy import delete, select

from queue_over_sql import Publication
from queue_over_sql.groups.statements import rows_of_groups
from queue_over_sql.queue import core_of
from tests.contract.durable.queries import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService

pytestmark = pytest.mark.driver_decides


Claim: TypeAlias = "Callable[[int], list[int]]"
"""Takes so many messages; returns their ids."""


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with ordered groups."""
    return service.create_queue("jobs", group_limit=1)


@pytest.fixture(params=["consume", "take"])
def claim(request: pytest.FixtureRequest, jobs: Queue, engine: Engine) -> Claim:
    """For a consumer, and in a caller's transaction, which is then undone."""

    def taken(count: int) -> list[int]:
        if request.param == "consume":
            ids: list[int] = []
            # A claim that got something need not look for more.
            while len(ids) < count and (some := jobs.consume(count - len(ids))):
                ids += [message.id for message in some]
            return ids
        with engine.connect() as caller, caller.begin() as transaction:
            found = [message.id for message in jobs.take(count, connection=caller)]
            transaction.rollback()
        return found

    return taken


def _publish(queue: Queue, groups: str) -> list[int]:
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    return [each.id for each in made]


@pytest.mark.parametrize("count", [1, 2])
def test_behind_a_held_first_message(jobs: Queue, claim: Claim, count: int) -> None:
    """What is due of other groups comes, as many groups as wait."""
    firsts = _publish(jobs, "vwx")
    assert 3 == jobs.messages(where=jobs.table.c.id.in_(firsts)).hold()
    free = _publish(jobs, "vwxyvwxz")
    assert [free[3], free[7]][:count] == claim(count)


def test_behind_a_first_message_that_is_put_off(jobs: Queue, claim: Claim) -> None:
    """As behind a held one."""
    jobs.publish("later", group="x", delay=3600)
    _, of_another = _publish(jobs, "xy")
    assert [of_another] == claim(1)


@pytest.mark.threads("the engine decides")
@pytest.mark.parametrize("count", [1, 2])
def test_a_round_behind_held_first_messages(jobs: Queue, count: int) -> None:
    """Rounds park nothing, so they meet the same ones each time."""
    firsts = _publish(jobs, "wx")
    assert 2 == jobs.messages(where=jobs.table.c.id.in_(firsts)).hold()
    _publish(jobs, "wxy")
    # The last one of its list.
    assert [2] == [payload for part in Query(jobs).batch(each=count) for payload in part]


def test_a_group_whose_row_the_reaper_removed(jobs: Queue, engine: Engine, claim: Claim) -> None:
    """Its next message comes at once, also in a batch of a service that knew the row."""
    jobs.publish(1, group="x")
    jobs.ack(jobs.consume(9))
    with engine.begin() as connection:
        connection.execute(delete(rows_of_groups(core_of(jobs).context.tables)))
    published = jobs.publish(2, group="x")
    assert [published.id] == claim(9)


@pytest.mark.parametrize("groups", ["xwxwxwy", "xwxwy"])
@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_behind_a_first_message_that_somebody_has_locked(
    jobs: Queue, engine: Engine, claim: Claim, groups: str
) -> None:
    """An operator who deletes it, for example."""
    x1, w1, *_, y1 = _publish(jobs, groups)
    with engine.connect() as operator, operator.begin():
        for each in (x1, w1):
            locking = select(jobs.table.c.id).where(jobs.table.c.id == each).with_for_update()
            assert operator.execute(locking).all()
        assert [y1] == claim(1 if len(groups) > 5 else 4)
