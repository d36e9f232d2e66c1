"""A process that forks after using a service; both sides continue as separate consumers."""

from __future__ import annotations

import os
import sys
import threading
import traceback

from queue_over_sql import ConsumerExpired, Message, Observer, Queue, QueueService
from queue_over_sql.observer import ReaperReport

MESSAGES = 30


class Passes(Observer):
    """Notes a pass of the reaper."""

    def __init__(self) -> None:
        self.come = threading.Event()

    def reaped(self, report: ReaperReport, seconds: float) -> None:
        """Note it."""
        del report, seconds
        self.come.set()


def main(url: str) -> int:
    """Fork; the child acks six messages, the parent two and what it held; 0 if all was right."""
    passes = Passes()
    with QueueService(url, observer=passes) as service:
        queue = service.create_queue("jobs")
        queue.publish_many(range(MESSAGES))
        held = queue.consume(3, keep=True, lease=3)
        child = os.fork()
        if child == 0:
            os._exit(_child(service, queue, held, passes))
        for _ in range(10):
            queue.publish("more")
        status = os.waitpid(child, 0)[1]
        queue.ack(held)
        queue.ack(queue.consume(2))
        left = queue.stats()
    expected = MESSAGES + 10 - 6 - 3 - 2
    return 0 if (status, left.ready, left.claimed) == (0, expected, 0) else 1


def _child(service: QueueService, queue: Queue, held: list[Message], passes: Passes) -> int:
    parent_id = service.consumer_id
    try:
        passes.come = threading.Event()
        if service.started:
            return 4
        if not _refused(queue, held):
            return 6
        service.start()
        if not (service.started and passes.come.wait(30)):
            return 5
        for _ in range(3):
            queue.ack(queue.consume(2, keep=True))
        if service.consumer_id == parent_id:
            return 3
        if _refused(queue, held):
            queue.held(held[0].token).extend()
            service.stop()
            return 0
    except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happens
        traceback.print_exc()
    return 2


def _refused(queue: Queue, held: list[Message]) -> bool:
    """Whether the child may not settle a claim of its parent, and is told how it could."""
    try:
        queue.release(held)
    except ConsumerExpired as error:
        return "its parent made the claim" in str(error)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
