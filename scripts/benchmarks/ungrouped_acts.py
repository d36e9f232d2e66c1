"""What ``ungrouped`` measures, run by each of the compared trees: ``ungrouped_acts.py URL``.

It knows only public names that both trees have. Each line of its input names an act and a number
of messages; each line of its output has the seconds, and those of the processor of this process.
"""

from __future__ import annotations

import json
import sys
import time

from queue_over_sql import Queue, QueueService

BATCH = 100
PAYLOAD = {"fill": "x" * 180}


def publish(queue: Queue, count: int) -> None:
    """Publish one by one."""
    for _ in range(count):
        queue.publish(PAYLOAD)


def publish_many(queue: Queue, count: int) -> None:
    """Publish by 100."""
    for _ in range(count // BATCH):
        queue.publish_many([PAYLOAD] * BATCH)


def claim_and_ack(queue: Queue, count: int) -> None:
    """Claim one by one, and ack each."""
    for _ in range(count):
        queue.ack(queue.consume(1))


def claim_and_ack_many(queue: Queue, count: int) -> None:
    """Claim by 100, and ack them."""
    for _ in range(count // BATCH):
        queue.ack(queue.consume(BATCH))


def exchange_many(queue: Queue, count: int) -> None:
    """Ack 100 and claim the next ones at once."""
    held = queue.consume(BATCH)
    for _ in range(count // BATCH - 1):
        held = queue.exchange(held, BATCH)
    queue.ack(held)


ACTS = {
    "publish": publish,
    "publish by 100": publish_many,
    "claim and ack": claim_and_ack,
    "claim and ack by 100": claim_and_ack_many,
    "exchange by 100": exchange_many,
}


def main(url: str) -> None:
    """Do what each line says."""
    with QueueService(url, reaper_interval=3600) as service:
        queue = service.create_queue("jobs", archive="none")
        print("ready", flush=True)
        for line in sys.stdin:
            name, count = json.loads(line)
            if name == "load":
                queue.load([PAYLOAD] * count)
            began, used = time.perf_counter(), time.process_time()
            if name != "load":
                ACTS[name](queue, count)
            lasted, used = time.perf_counter() - began, time.process_time() - used
            if name.startswith("publish"):
                queue.purge()
            elif name != "load" and (left := queue.stats().live):
                sys.exit(f"{name}: {left} messages are left")
            print(json.dumps([lasted, used]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
