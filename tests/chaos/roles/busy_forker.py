"""Programs that fork while threads of theirs use a database; each returns 0 if all was right."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from sqlalchemy import event

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.service import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

THREADS, CHILDREN, EACH = 4, 12, 3
# A child that waits for what nobody gives back ends by this.
CHILDS_SECONDS = 15
# What a start asks the database at least.
LEAST_STATEMENTS = 3


def busy(url: str) -> int:
    """Fork twelve times while threads publish and consume; all children publish and end."""
    over = threading.Event()
    with QueueService(url) as service:
        service.create_queue("jobs")
        service.create_queue("found")
        threads = [threading.Thread(target=_work, args=(service, over)) for _ in range(THREADS)]
        # A waiting consumer, whose thread watches the file.
        threads.append(threading.Thread(target=_wait, args=(service, over)))
        for thread in threads:
            thread.start()
        children = []
        for _ in range(CHILDREN):
            children.append(_forked(lambda: _publish(url)))
            time.sleep(0.02)
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        over.set()
        for thread in threads:
            thread.join()
        found = sorted(m.payload for m in service.queue("found").consume(1000))
    expected = sorted(f"{child} {number}" for child in children for number in range(EACH))
    return 0 if (ended, found) == ([0] * CHILDREN, expected) else _wrong(ended, len(found))


def outliving(url: str) -> int:
    """Fork while nothing runs; the parent closes the file before the child publishes again."""
    may_go_on, told = os.pipe()
    done, tell = os.pipe()
    service = QueueService(url)
    service.create_queue("jobs").publish("parent")

    def publish() -> None:
        with QueueService(url) as mine:
            jobs = mine.queue("jobs")
            jobs.publish("child")
            os.write(tell, b"x")
            os.read(may_go_on, 1)
            jobs.publish("child again")
            # It ends as a killed process does, which closes no file.
            os._exit(0)

    child = _forked(publish)
    os.read(done, 1)
    service.stop()
    os.write(told, b"x")
    os.waitpid(child, 0)
    with QueueService(url) as again:
        found = [message.payload for message in again.queue("jobs").consume(10)]
    return 0 if found == ["parent", "child", "child again"] else _wrong(found)


def refused(url: str) -> int:
    """Fork while a transaction is open: the parent goes on, the child is told that it cannot."""
    from queue_over_sql.database import forks

    forks._TIMEOUT = 0.1  # type: ignore[misc]
    service = QueueService(url)
    jobs = service.create_queue("jobs")
    with parts_of(service).connections.transaction() as connection:
        jobs.publish(1, connection=connection)
        child = _forked(lambda: _is_refused(url))
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    jobs.publish(2)
    left = jobs.stats().ready
    service.stop()
    return 0 if (ended, left) == (0, 2) else _wrong(ended, left)


def starting(url: str) -> int:
    """Fork at every fourth statement of a start in another thread; the child starts it, too."""
    inside, go_on = threading.Event(), threading.Event()
    # SQLite's fork waits until the statement has ended, and the start then waits for the fork.
    if url.startswith("sqlite"):
        os.register_at_fork(before=go_on.set)
    for statement in range(1, 100, 4):
        inside.clear()
        go_on.clear()
        service = QueueService(url)
        starter = threading.Thread(target=_start, args=(service, inside))
        _pause_at(service, statement, starter, inside, go_on)
        starter.start()
        inside.wait()
        if service.started:
            starter.join()
            service.stop()
            return 0 if statement > LEAST_STATEMENTS else _wrong(statement)
        child = _forked(lambda: _start_and_publish(service, url))  # noqa: B023 - runs at once
        go_on.set()
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        starter.join()
        service.stop()
        if ended:
            return _wrong(statement, ended)
    return _wrong("too many statements")


def idle(url: str) -> int:
    """Fork beside a thread whose session is idle; children end at once, or as programs do."""
    service = QueueService(url)
    jobs, run = service.create_queue("jobs"), parts_of(service).connections.run
    go_on, told = threading.Semaphore(0), threading.Semaphore(0)
    states: list[tuple[int, int]] = []

    def tell() -> None:
        jobs.publish(1)
        for _ in range(3):
            states.append(run(_state))
            told.release()
            go_on.acquire()

    thread = threading.Thread(target=tell)
    thread.start()
    told.acquire()
    before = run(_state)
    for end in (os._exit, sys.exit):
        child = os.fork()
        if not child:
            gc.collect()
            end(0)
        os.waitpid(child, 0)
        go_on.release()
        told.acquire()
    go_on.release()
    thread.join()
    after = run(_state)
    service.stop()
    return 0 if (states, after) == ([states[0]] * 3, before) else _wrong(states, before, after)


def _state(connection: Connection) -> tuple[int, int]:
    rollbacks = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Com_rollback'").one()
    return connection.exec_driver_sql("SELECT @@autocommit").scalar_one(), int(rollbacks[1])


def _pause_at(
    service: QueueService,
    statement: int,
    thread: threading.Thread,
    inside: threading.Event,
    go_on: threading.Event,
) -> None:
    left = statement

    def pause(*_: object) -> None:
        nonlocal left
        if threading.current_thread() is thread:
            left -= 1
            if not left:
                inside.set()
                go_on.wait()

    event.listen(parts_of(service).connections.engine, "before_cursor_execute", pause)


def _start(service: QueueService, inside: threading.Event) -> None:
    service.start()
    inside.set()


def _start_and_publish(service: QueueService, url: str) -> None:
    for each in (service, QueueService(url)):
        each.start()
        each.create_queue("jobs").publish(1)
        each.stop()


def _work(service: QueueService, over: threading.Event) -> None:
    jobs = service.queue("jobs")
    while not over.is_set():
        jobs.publish_many(range(20))
        jobs.ack(jobs.consume(20))


def _wait(service: QueueService, over: threading.Event) -> None:
    empty = service.create_queue("empty")
    while not over.is_set():
        empty.consume(1, wait=0.2)


def _publish(url: str) -> None:
    with QueueService(url) as service:
        for number in range(EACH):
            service.queue("found").publish(f"{os.getpid()} {number}")


def _is_refused(url: str) -> None:
    with contextlib.suppress(DatabaseUnavailable):
        QueueService(url).queue("jobs").publish("lost")
        sys.exit("It published with locks that it does not have.")


def _forked(act: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    timer = threading.Timer(CHILDS_SECONDS, os._exit, (3,))
    timer.daemon = True
    timer.start()
    try:
        act()
    except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happens
        traceback.print_exc()
        os._exit(2)
    os._exit(0)


def _wrong(*found: object) -> int:
    sys.stderr.write(f"{found}\n")
    return 1


if __name__ == "__main__":
    forms = {"busy": busy, "outliving": outliving, "refused": refused, "starting": starting}
    forms["idle"] = idle
    sys.exit(forms[sys.argv[1]](sys.argv[2]))
