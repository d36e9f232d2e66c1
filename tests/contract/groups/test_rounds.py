"""Rounds of durable consumers and groups: a group is in one round at a time, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import Publication
from tests.contract.durable.queries import Query
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql import QueueService

pytestmark = pytest.mark.threads("a streaming engine reads by threads and processes")


def test_rounds_obey_groups(service: QueueService) -> None:
    """Each group is in one part of a batch, by id; what is behind it waits for the next batch."""
    queue = service.create_queue("jobs", group_limit=1)
    groups = ["a", "b", None, "a", "b", "a", "c", None, "a"]
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    ids: dict[str | None, list[int]] = {group: [] for group in groups}
    for group, each in zip(groups, made, strict=True):
        ids[group].append(each.id)
    [in_hand] = queue.consume(1)
    query, read = Query(queue), {group: list[int]() for group in groups}
    while True:
        seen: dict[str, int] = {}
        parts = query.plan(each=3)
        for place, part in enumerate(parts):
            for message_id in query.ids(part):
                [group] = [name for name in ids if message_id in ids[name]]
                read[group].append(message_id)
                assert group is None or place == seen.setdefault(group, place)
        if not parts:
            break
        assert [] == [each for each in queue.consume(10) if each.group in seen]
        query.checkpoint = parts[-1].consumer_round
    query.done()
    assert not read["a"]
    assert (ids["b"], ids["c"], ids[None]) == (read["b"], read["c"], sorted(read[None]))
    in_hand.ack()
    assert ids["a"][1:] == [each.id for each in consume_exactly(queue, 3)]


def test_a_failure_in_a_round_gives_back_what_is_behind_it(service: QueueService) -> None:
    """It is retried before the others of its group, which are not counted; other groups stay."""
    queue = service.create_queue("jobs", group_limit=1)
    made = queue.publish_many([Publication(n, group=name) for n, name in enumerate("aaba")])
    first, *rest = [each.id for each in made]
    query = Query(queue)
    [part] = query.plan()
    assert {first} == query.consumer.nack([(first, part.consumer_round, "no")], delay=0)
    assert [rest[1]] == query.ids(part)
    assert [(first, 2), (rest[0], 1), (rest[2], 1)] == [
        (each.id, each.attempt) for each in consume_exactly(queue, 3)
    ]


def test_all_failures_of_a_group_count(service: QueueService) -> None:
    """Each keeps its attempt and its reason, also behind a dead letter that blocks the group."""
    cases: list[tuple[list[str], int | None]] = [
        (["same", "same"], None),
        (["one", "two"], None),
        (["same", "same"], 1),
        (["one", "two"], 1),
    ]
    for reasons, most in cases:
        queue = service.create_queue("jobs", group_limit=1, block_on_failure=True)
        made = [queue.publish(n, group="a", max_attempts=[most, None][n]).id for n in range(2)]
        query = Query(queue)
        [part] = query.plan()
        failed = [(id_, part.consumer_round, why) for id_, why in zip(made, reasons, strict=True)]
        assert {*made} == query.consumer.nack(failed, delay=0)
        left = [(m.id, m.attempt, m.last_error) for m in queue.messages().list()]
        assert [(made[1], 1, reasons[1])] == left[-1:]
        if most is None:
            assert [(made[0], 1, reasons[0])] == left[:1]
        query.consumer.drop()
        service.drop_queue("jobs")


def test_rounds_of_fair_groups_get_each_message_once(service: QueueService) -> None:
    """Of a large backlog as of small ones, beside a consumer who claims one by one."""
    queue = service.create_queue("jobs", group_fair=True)
    names = [*["a"] * 200, *["b", "c", None] * 5]
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(names)])
    query, read = Query(queue), list[int]()
    others = [message.id for _ in range(20) for message in queue.consume(1)]
    while parts := query.plan(each=10):
        read += [message_id for part in parts for message_id in query.ids(part)]
        others += [message.id for message in queue.consume(1)]
        query.checkpoint = parts[-1].consumer_round
    query.done()
    assert sorted([*read, *others]) == [each.id for each in made]
