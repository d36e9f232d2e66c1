"""A message that waits for each rule of groups and limits, for tests of what is said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql import Publication, Reason
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql import Queue, QueueService

GROUP = "it's <mine>"


def each_rule(service: QueueService) -> Iterator[tuple[Queue, int, Reason]]:
    """One rule after the other: the queue, the message that it holds up, and the reason."""
    jobs = service.create_queue("rules", group_limit=1, block_on_failure=True)
    group = jobs.groups[GROUP]

    def waiting(reason: Reason) -> tuple[Queue, int, Reason]:
        [first] = jobs.messages(group=GROUP, status="ready").list(limit=1)
        return jobs, first.id, reason

    jobs.publish_many([Publication(number, group=GROUP) for number in range(6)])
    [head] = jobs.consume(1)
    yield waiting(Reason.GROUP_HEAD)
    head.reject("no")
    yield waiting(Reason.GROUP_BLOCKED)
    group.unblock()
    group.pause()
    yield waiting(Reason.GROUP_PAUSED)
    group.resume()
    group.configure(limit=2)
    in_hand = [*jobs.consume(1), *jobs.consume(1)]
    yield waiting(Reason.GROUP_LIMIT)
    jobs.ack(in_hand)
    group.configure(limit=1, rate="1/h")
    jobs.ack(jobs.consume(1))
    # A heartbeat says that this program handles the queue, of which it holds nothing any more.
    wait_until(lambda: jobs.why(waiting(Reason.GROUP_RATE)[1]).reason is Reason.GROUP_RATE)
    yield waiting(Reason.GROUP_RATE)
    full = service.create_queue("full", queue_limit=1)
    ids = [full.publish(number).id for number in range(2)]
    assert 1 == len(full.consume(2))
    # The first claim of a new queue: only the next heartbeat says so.
    wait_until(lambda: full.why(ids[1]).reason is Reason.QUEUE_LIMIT)
    yield full, ids[1], Reason.QUEUE_LIMIT
    rated = service.create_queue("rated", queue_rate="1/h")
    ids = [rated.publish(number).id for number in range(2)]
    rated.ack(rated.consume(1))
    wait_until(lambda: rated.why(ids[1]).reason is Reason.QUEUE_RATE)
    yield rated, ids[1], Reason.QUEUE_RATE
