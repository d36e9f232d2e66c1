"""Celery's worker on the queues of a database, with real processes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from queue_over_sql.contrib.kombu import services
from tests.contrib.programs import Programs
from tests.waiting import eventually, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.default_on("postgresql"),
    # H2's Java VM survives no fork of a worker.
    pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb"),
]
TASKS = 60
WORKER = (
    *("-m", "celery", "-A", "counting", "worker", "--concurrency=2", "--loglevel=error"),
    *("--hostname", "counting@%h", "--task-events"),
)
APP = """
import os, time
from celery import Celery
from celery.exceptions import Reject
import queue_over_sql.contrib.kombu

app = Celery("counting", broker="queue-over-sql+" + os.environ["DATABASE"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    broker_transport_options={"service": {"consumer_timeout": 3.0, "reaper_interval": 0.2}},
)

def note(what):
    with open("ran", "a") as file:
        file.write(f"{what}\\n")

@app.task
def count(number):
    note(number)
    time.sleep(0.02)

@app.task(bind=True)
def again(self):
    if not self.request.delivery_info["redelivered"]:
        raise Reject("once more", requeue=True)
    note("again")

@app.task
def never():
    note("never")
"""
USE = """
import time
from counting import again, app, count, never
for number in range({tasks}):
    count.delay(number)
"""
CONTROL = """
from counting import again, app, count, never
def answer(ask):
    for _ in range(20):
        if answers := ask(): return list(answers.values())
    raise SystemExit("no answer")
inspect = app.control.inspect(timeout=2)
assert answer(inspect.ping) == [{"ok": "pong"}]
assert [{"counting.again", "counting.count", "counting.never"}] == [
    set(names) for names in answer(inspect.registered)
]
revoked = never.apply_async(countdown=3600)
revoked.revoke()
assert [[revoked.id]] == answer(inspect.revoked)
seen = []
def on_event(event):
    seen.append(event["type"])
    if seen == ["worker-heartbeat"]:
        again.delay()
    receiver.should_stop = "task-succeeded" in seen
with app.connection() as connection:
    receiver = app.events.Receiver(connection, handlers={"*": on_event})
    receiver.capture(limit=None, timeout=60, wakeup=False)
assert {"task-received", "task-started"} <= set(seen), seen
"""


def test_each_task_runs_though_workers_are_killed(
    database: TestDatabase, make_service: MakeService, tmp_path: Path
) -> None:
    """Two workers with all their processes are killed amid their tasks; the third one is asked.

    None is lost, and twice runs at most what the killed ones had in hand. A task that requeues
    itself sees that it did; ``inspect`` and ``revoke`` reach the worker, its events whoever
    receives them; SIGTERM ends it well.
    """
    (tmp_path / "counting.py").write_text(APP)
    programs = Programs(tmp_path, DATABASE=database.url, PYTHONWARNINGS="ignore")

    def ran() -> list[str]:
        file = tmp_path / "ran"
        return file.read_text().split() if file.exists() else []

    programs.run("-c", USE.format(tasks=TASKS))
    for done in (TASKS // 4, TASKS // 2):
        with programs.started(*WORKER):
            eventually(lambda done=done: len(ran()) >= done, "tasks run", within=60)  # type: ignore[misc]
    service = make_service()
    queue = service.queue("celery")
    with programs.started(*WORKER) as last:
        wait_until(lambda: {str(n) for n in range(TASKS)} <= set(ran()), timeout=60)
        programs.run("-c", CONTROL)
        wait_until(lambda: "again" in ran(), timeout=30)
        named = {each.name for each in service.consumers() if each.pid == last.pid}
        assert {f"counting@{socket.gethostname()}"} == named
        last.terminate()
        assert 0 == last.wait(30)
    # The task that was revoked waited in the worker, which dropped or gave it back.
    assert queue.stats().live <= 1
    assert "never" not in ran()
    twice = len(ran()) - TASKS - 1
    assert 0 <= twice <= 2 * 2 * 2
    assert 0 == services.count()
