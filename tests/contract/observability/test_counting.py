"""What goes on in the queues, from one look to the next."""

from __future__ import annotations

import pytest

from queue_over_sql.observability.counting import ActivitySnapshots
from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.threads("the command line looks, and it has no event loop")


def test_a_look_tells_what_has_happened_since_the_one_before(make_service: MakeService) -> None:
    """Also of messages that came and went in between; who holds how many; the new dead letters."""
    with make_service(consumer_name="holder") as service:
        queue, idle = service.create_queue("jobs"), service.create_queue("idle")
        idle.publish(0)
        queue.publish_many(range(3))
        queue.consume()[0].reject("before")
        snapshots = ActivitySnapshots(service)
        first = snapshots.take()
        queue.publish_many(range(10))
        for message in queue.consume(3):
            message.ack()
        queue.consume()[0].reject("since")
        queue.consume(2)
        seen, holder = snapshots.take(), service.consumer_id
    assert {} == first.published
    assert {} == first.finished
    assert {"jobs": 0, "idle": 0} == first.died
    assert {"jobs": 1, "idle": 0} == seen.died
    assert 0.0 == seen.published["idle"]
    assert 0.0 == seen.finished["idle"]
    # Ten messages came, four went.
    assert seen.finished["jobs"] / seen.published["jobs"] == pytest.approx(0.4)
    [consumer] = seen.consumers
    assert "holder" == consumer.name
    assert {holder: 2} == seen.holds
    assert 8 == seen.queues["jobs"].live
    assert 2 == seen.queues["jobs"].claimed
