"""A process that publishes and consumes while a timer interrupts it anywhere."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING

from queue_over_sql import QueueService

if TYPE_CHECKING:
    from types import FrameType

SECONDS = 3.0


class TimedOut(Exception):
    """What the alarm raises, wherever the program is."""


def main(url: str) -> None:
    """Work under alarms, then once without; print how many publishes were answered."""
    signal.signal(signal.SIGALRM, _alarm)
    service = QueueService(url, consumer_timeout=5)
    queue = service.queue("jobs")
    published = interrupted = rounds = 0
    ends = time.monotonic() + SECONDS
    ended = False
    while not ended:
        try:
            # An alarm that came just before it was called off is raised after that.
            while time.monotonic() < ends:
                rounds += 1
                # The delays sweep over all the places that an alarm can hit.
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + (rounds % 40) * 0.0002)
                queue.publish(published)
                published += 1
                queue.release(queue.consume(2))
                signal.setitimer(signal.ITIMER_REAL, 0)
            ended = True
        except TimedOut:
            interrupted += 1
    queue.publish("own")
    print(json.dumps({"published": published, "interrupted": interrupted}), flush=True)  # noqa: T201
    signal.pause()


def _alarm(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimedOut


if __name__ == "__main__":
    main(sys.argv[1])
