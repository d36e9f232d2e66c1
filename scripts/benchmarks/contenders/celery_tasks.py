"""The Celery application of the benchmark ``celery_kills``: its tasks keep a journal themselves.

The benchmark's ``Setup`` comes as JSON in the environment. Workers import this module as Celery's
application; run as a program it declares the queue, publishes the tasks, or counts what is left::

    python -m scripts.benchmarks.contenders.celery_tasks prepare
    python -m scripts.benchmarks.contenders.celery_tasks publish stops 1000
    python -m scripts.benchmarks.contenders.celery_tasks count

A line of the journal is one write, so it survives the process that is killed right after it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import islice
from typing import Any, Final

VARIABLE: Final = "CELERY_KILLS"
QUEUE: Final = "celery"
PARTS: Final = 9
"""The header of a chord; its body is one task more."""
CHORDS: Final = 20
RETRIED: Final = 200
LATER: Final = 200
_TAKES = 0.05
_RETRY_AFTER = 1


@dataclass(frozen=True)
class Setup:
    """How the processes of one run work.

    Attributes:
        broker: URL of the broker.
        backend: URL of the result backend.
        imported: the module of the transport; empty: it is one of kombu's.
        options: of the transport.
        journal: the file that tasks write to.
        worker: the name of this worker, which each line of the journal has.
    """

    broker: str
    backend: str
    journal: str
    options: dict[str, Any]
    imported: str = ""
    worker: str = ""

    def environment(self) -> dict[str, str]:
        """The environment variable for a process with this setup."""
        return {VARIABLE: json.dumps(asdict(self))}


def note(journal: int, what: str, number: int, **more: Any) -> None:
    """Write a line about a task, with this process and the time."""
    line = {"what": what, "n": number, "pid": os.getpid(), "time": time.time(), **more}
    os.write(journal, json.dumps(line).encode() + b"\n")


def application(setup: Setup) -> Any:
    """The application with its tasks."""
    import celery  # noqa: PLC0415 - only the peers' environment has it

    if setup.imported:
        import_module(setup.imported)
    app = celery.Celery("kills", broker=setup.broker, backend=setup.backend)
    app.conf.update(
        broker_transport_options=setup.options,
        task_acks_late=True,
        task_default_queue=QUEUE,
        task_reject_on_worker_lost=True,
        # Each part of a chord must get its result in, or the chord does not end.
        result_backend_always_retry=True,
        worker_hijack_root_logger=False,
    )
    journal = os.open(setup.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def work(number: int) -> int:
        note(journal, "start", number, worker=setup.worker)
        time.sleep(_TAKES)
        note(journal, "end", number, worker=setup.worker)
        return number

    def total(numbers: list[int], number: int) -> int:
        note(journal, "start", number, worker=setup.worker)
        note(journal, "end", number, worker=setup.worker, parts=len(set(numbers)))
        return len(numbers)

    def second_time(self: Any, number: int) -> int:
        if self.request.retries == 0:
            note(journal, "start", number, worker=setup.worker)
            time.sleep(_TAKES)
            note(journal, "retry", number, worker=setup.worker)
            raise self.retry(countdown=_RETRY_AFTER)
        return work(number)

    app.task(name="work", ignore_result=True)(work)
    app.task(name="second_time", bind=True, ignore_result=True, max_retries=3)(second_time)
    app.task(name="part")(work)
    app.task(name="total")(total)
    return app


def publish(app: Any, scenario: str, count: int) -> None:
    """Publish tasks with the numbers 0 to ``count - 1``; of ``stops`` not all are plain."""
    import celery  # noqa: PLC0415 - only the peers' environment has it

    numbers = iter(range(count))
    work, second_time = app.tasks["work"], app.tasks["second_time"]
    if scenario == "stops":
        share = count / 1000
        for number in islice(numbers, round(LATER * share)):
            work.apply_async((number,), countdown=2 + number % 8)
        for number in islice(numbers, round(RETRIED * share)):
            second_time.delay(number)
        for _ in range(round(CHORDS * share)):
            header = [app.tasks["part"].s(number) for number in islice(numbers, PARTS)]
            celery.chord(header)(app.tasks["total"].s(next(numbers)))
    for number in numbers:
        work.delay(number)


def count_left(app: Any) -> dict[str, int]:
    """Count the messages that wait in the queue, and those that workers have in hand."""
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        # A passive declaration fails on Redis where nothing waits.
        waiting = channel._size(QUEUE)  # noqa: SLF001 - that of all of kombu's virtual channels
        in_hand = 0
        if connection.transport.driver_type == "redis":
            in_hand = channel.client.hlen("unacked")
    return {"waiting": waiting, "in_hand": in_hand}


def main(app: Any, wanted: str, *arguments: str) -> None:
    """Do what the command line says; the answer is a line of JSON."""
    if wanted == "publish":
        scenario, count = arguments
        publish(app, scenario, int(count))
        print(json.dumps({"published": int(count)}))
    elif wanted == "prepare":
        with app.connection_for_write() as connection:
            app.amqp.queues[QUEUE](connection.default_channel).declare()
        print("{}")
    else:
        print(json.dumps(count_left(app)))


if VARIABLE in os.environ:
    app = application(Setup(**json.loads(os.environ[VARIABLE])))
    if __name__ == "__main__":
        main(app, *sys.argv[1:])
