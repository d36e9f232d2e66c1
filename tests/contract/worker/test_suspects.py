"""A worker whose messages were with a consumer that died."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.contract.queue_state import set_columns
from tests.contract.test_reaper import kill
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import MakeService


@pytest.mark.driver_decides
@pytest.mark.default_on("sqlite", "postgresql")
def test_suspects_run_with_nothing_else_in_hand(make_service: MakeService, engine: Engine) -> None:
    """Also not beside the messages of other handlers; all others run together as before."""
    service = make_service()
    queues = {name: service.create_queue(name) for name in ("jobs", "others")}
    suspects = {m.id for m in queues["jobs"].publish_many(range(4))}
    lost = make_service()
    assert 4 == len(lost.queue("jobs").consume(4))
    kill(engine, lost)
    service.reap()
    queues["jobs"].publish_many(range(4, 24))
    queues["others"].publish_many(range(20))

    lock, in_work, handled = threading.Lock(), set[tuple[str, int]](), list[tuple[str, int]]()
    beside: dict[tuple[str, int], int] = {}

    def handler(name: str) -> Callable[[Message], None]:
        def work(message: Message) -> None:
            me = (name, message.id)
            with lock:
                in_work.add(me)
                handled.append(me)
            # Long enough for others to begin beside it.
            time.sleep(0.02)
            with lock:
                for each in in_work:
                    beside[each] = max(beside.get(each, 0), len(in_work))
                in_work.remove(me)

        return work

    worker = make_service().worker(concurrency=4, poll_interval=(0.005, 0.02))
    for name in queues:
        worker.handle(name)(handler(name))
    with running(worker, until_empty=True):
        pass
    assert 44 == len(handled) == len(set(handled))
    assert {1} == {beside["jobs", suspect] for suspect in suspects}
    assert 1 < max(beside.values())
    assert 0 == sum(queue.stats().live for queue in queues.values())


@pytest.mark.driver_decides
@pytest.mark.engines("sqlite")
def test_a_worker_that_drains_gives_a_waiting_suspect_back(
    make_service: MakeService, engine: Engine
) -> None:
    """It waits for the end of a long call, and was not begun: its attempt is not counted."""
    service = make_service()
    queue, long = service.create_queue("jobs"), service.create_queue("long")
    begun, go_on = threading.Event(), threading.Event()
    worker = make_service().worker(concurrency=2, poll_interval=(0.005, 0.02))

    @worker.handle("long")
    def wait(message: Message) -> None:
        assert message.payload == "long"
        begun.set()
        assert go_on.wait(30)

    @worker.handle("jobs")
    def never(message: Message) -> None:
        raise AssertionError(message)

    suspect = queue.publish("suspect", delay=3600)
    reason = "the consumer died while it held the message: lost, process 1 on host here"
    set_columns(engine, queue, suspect.id, last_error=reason)
    long.publish("long")
    with running(worker):
        assert begun.wait(30)
        queue.messages().reschedule(delay=0)
        wait_until(lambda: queue.stats().claimed == 1)
        worker.stop()
        go_on.set()
    (message,) = queue.consume()
    assert (1, reason) == (message.attempt, message.last_error)
