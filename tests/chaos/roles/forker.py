"""A process that forks after using a service; both sides continue as separate consumers."""

from __future__ import annotations

import os
import sys
import traceback

from queue_over_sql import ClaimLost, Message, Queue, QueueService

MESSAGES = 30


def main(url: str) -> int:
    """Fork; the child acks six messages, the parent two and what it held; 0 if all was right."""
    with QueueService(url) as service:
        queue = service.create_queue("jobs")
        queue.publish_many(range(MESSAGES))
        held = queue.consume(3)
        child = os.fork()
        if child == 0:
            os._exit(_child(service, queue, held))
        for _ in range(10):
            queue.publish("more")
        status = os.waitpid(child, 0)[1]
        queue.ack(held)
        queue.ack(queue.consume(2))
        left = queue.stats()
    expected = MESSAGES + 10 - 6 - 3 - 2
    return 0 if (status, left.ready, left.claimed) == (0, expected, 0) else 1


def _child(service: QueueService, queue: Queue, held: list[Message]) -> int:
    parent_id = service.consumer_id
    try:
        for _ in range(3):
            queue.ack(queue.consume(2))
        if service.consumer_id == parent_id:
            return 3
        try:
            queue.ack(held)
        except ClaimLost:
            service.stop()
            return 0
    except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happens
        traceback.print_exc()
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
