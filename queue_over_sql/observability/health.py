"""Health: whether a process is live and ready, and whether queues are served.

*Live* does not need the database, because an outage must not restart every process. Each background
loop notes when it runs again (``LoopProgress``). A loop is stuck if it is late, does not wait
for the database and has not moved since the last probe. On an event loop, a callback must return
instead.

*Ready* reads this consumer's registration from the database, at most once a second, with a time
limit.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import inside
from queue_over_sql.errors import DatabaseUnavailable, QueueError, ServiceClosed
from queue_over_sql.values.durations import Duration, duration_text, to_timedelta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from queue_over_sql import QueueService


_log = logging.getLogger(__name__)

OK: Final = "ok"
_ANSWER_SECONDS: Final = 1.0
# How long a probe waits for a callback of the event loop.
_CALLBACK_SECONDS: Final = 1.0
_HANDLERS: Final = "handlers"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The answer to a probe.

    Attributes:
        ok: whether all checks are ok.
        checks: the checks by name, each ``ok`` or what is wrong; never a payload or a secret.
    """

    ok: bool
    checks: Mapping[str, str]

    @classmethod
    def of(cls, checks: Mapping[str, str]) -> Report:
        """Make the report of these checks."""
        return cls(all(said == OK for said in checks.values()), checks)


class Health:
    """Whether this process is live and ready; any thread may use it.

    Args:
        watched: a worker, or a service without a worker; also asynchronous ones.
        hung_after: a worker is considered hung if each of its threads has been in one handler call
            for this long. None (default): handlers may take any time.
        database_timeout: time limit for the database's answer.
        turn_timeout: how late a background loop, or the event loop, may be. Default: the service's
            ``consumer_timeout``, after which its messages go to other consumers.
        must_start: whether a service that is not started is unready. False for a process that is
            useful without a start, such as a dashboard: it is ready when the database answers.

    Raises:
        TypeError, ValueError: an argument has an invalid value.
    """

    def __init__(
        self,
        watched: Any,
        *,
        hung_after: Duration | None = None,
        database_timeout: Duration = 2.0,
        turn_timeout: Duration | None = None,
        must_start: bool = True,
    ) -> None:
        self._vitals = inside.Vitals(watched)
        self._hung_after = None if hung_after is None else _seconds(hung_after, "hung_after")
        self._database = _Answers(self._vitals, _seconds(database_timeout, "database_timeout"))
        self._timeout = (
            self._vitals.consumer_timeout
            if turn_timeout is None
            else _seconds(turn_timeout, "turn_timeout")
        )
        self._must_start = must_start
        self._lock = threading.Lock()
        # The state of each late loop when it was first seen late.
        self._stood: dict[inside.Loop, tuple[_Stack, float]] = {}
        self._reported_about: set[object] = set()
        self._callback = _Callback()

    def live(self) -> Report:
        """Check whether the process makes progress; one that is not live should be restarted."""
        checks: dict[str, str] = {}
        if self._vitals.has_threads:
            for loop in self._vitals.loops():
                said = self._state(loop)
                if checks.get(loop.name, OK) == OK:
                    checks[loop.name] = said
        else:
            late = self._callback.late(self._vitals.start)
            stuck = late > self._timeout
            checks["event loop"] = (
                f"it has been blocked for {duration_text(round(late))}" if stuck else OK
            )
        if (handlers := self._vitals.handlers) is not None:
            checks["handlers"] = self._look_at_handlers(handlers)
        return Report.of(checks or {"process": OK})

    def ready(self) -> Report:
        """Check whether the process can work now: started, not draining, registered and alive."""
        checks: dict[str, str] = {}
        vitals, handlers = self._vitals, self._vitals.handlers
        if vitals.closed:
            checks["service"] = "it was stopped"
        elif handlers is not None and handlers.draining:
            checks["worker"] = "it is stopping: it finishes its current messages"
        elif handlers is not None and not handlers.running:
            checks["worker"] = "it is not running yet"
        elif not vitals.may_register:
            checks["database"] = self._database.ask()
        elif vitals.registered:
            checks["heartbeat"] = OK if vitals.alive else "the last one was too long ago"
            checks["database"] = self._database.ask()
        elif self._must_start:
            checks["service"] = "it is not started"
        else:
            checks["database"] = self._database.ask()
        return Report.of(checks)

    def _state(self, loop: inside.Loop) -> str:
        now, thread = time.monotonic(), loop.thread
        late = now - loop.due_at
        # A loop that ended normally has reported this before.
        if thread is not None and not thread.is_alive() and loop.thread is thread:
            return self._reported(loop, f"the {loop.name} has stopped unexpectedly")
        if thread is None and late >= self._timeout:
            return self._reported(loop, f"the {loop.name} could not be started")
        frame = None if thread is None or late < self._timeout else _frame_of(thread)
        with self._lock:
            if frame is None or self._vitals.asks_database(frame):
                self._stood.pop(loop, None)
                self._reported_about.discard(loop)
                return OK
            stack = _stack(frame)
            before, since = self._stood.get(loop, (None, now))
            if stack != before:
                since = now
            self._stood[loop] = stack, since
        if now - since < self._timeout / 2:
            return OK
        return self._reported(loop, f"the {loop.name} is {duration_text(round(late))} late", thread)

    def _look_at_handlers(self, handlers: inside.HandlersAtWork) -> str:
        # A call lasts until its message is given back, even in an outage of the database.
        if self._hung_after is None or handlers.in_outage:
            return OK
        began_before = time.monotonic() - self._hung_after
        hung = sum(began < began_before for began in handlers.called_at)
        if hung < handlers.concurrency:
            self._reported_about.discard(_HANDLERS)
            return OK
        count = handlers.concurrency
        most = duration_text(self._hung_after)
        said = f"each of {count} has been in one handler call for more than {most}"
        workers = (t for t in threading.enumerate() if t.name.startswith("queue-over-sql-worker-"))
        return self._reported(_HANDLERS, said, *workers)

    def _reported(self, about: object, said: str, *threads: threading.Thread | None) -> str:
        if about not in self._reported_about:
            self._reported_about.add(about)
            frames = [frame for thread in threads if thread and (frame := _frame_of(thread))]
            stacks = "".join("\n" + "".join(traceback.format_stack(frame)) for frame in frames)
            _log.error("This process is not live: %s.%s", said, stacks)
        return said


def _seconds(given: Duration, name: str) -> float:
    return to_timedelta(given, name).total_seconds()


_Stack = tuple[tuple[int, int], ...]


def _frame_of(thread: threading.Thread) -> FrameType | None:
    return sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - its only name


def _stack(frame: FrameType) -> _Stack:
    return tuple((id(each.f_code), each.f_lasti) for each, _ in traceback.walk_stack(frame))


class _Callback:
    """A callback of an event loop, and since when it has been awaited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came: threading.Event | None = None
        self._asked_at = 0.0

    def late(self, start: Callable[[str, Callable[[], object]], None]) -> float:
        """For how many seconds the loop has owed an answer; 0 if it owes none."""
        with self._lock:
            if self._came is None or self._came.is_set():
                came = self._came = threading.Event()
                self._asked_at = time.monotonic()
                try:
                    start("queue-over-sql-health", came.set)
                except RuntimeError:
                    # The loop has not started, or is closed.
                    self._came = None
                    return 0.0
            came, asked_at = self._came, self._asked_at
        return 0.0 if came.wait(_CALLBACK_SECONDS) else time.monotonic() - asked_at


class _Answers:
    """Reads this consumer's registration from the database, one query at a time."""

    def __init__(self, vitals: inside.Vitals, seconds: float) -> None:
        self._vitals = vitals
        self._seconds = seconds
        self._lock = threading.Lock()
        self._question: _DatabaseCheck | None = None

    def ask(self) -> str:
        """``ok``, or the problem, without the driver's text, which may reveal too much."""
        with self._lock:
            question = self._question
            if question is None or question.is_old():
                question = self._question = _DatabaseCheck(self._vitals)
                try:
                    self._vitals.start("queue-over-sql-health", question.put)
                except RuntimeError:
                    self._question = None
                    return "nothing runs any more"
        question.answered.wait(max(0.0, question.asked_at + self._seconds - time.monotonic()))
        return question.answer or f"it does not answer within {duration_text(self._seconds)}"


class _DatabaseCheck:
    def __init__(self, vitals: inside.Vitals) -> None:
        self._vitals = vitals
        self.asked_at = time.monotonic()
        self.answered = threading.Event()
        self.answer = ""

    def is_old(self) -> bool:
        """Whether a new query may be sent: not while one is unanswered."""
        return self.answered.is_set() and time.monotonic() > self.asked_at + _ANSWER_SECONDS

    def put(self) -> None:
        try:
            alive = self._vitals.ask()
            self.answer = OK if alive else "it considers this consumer dead"
        except ServiceClosed:
            self.answer = "the service was stopped"
        except DatabaseUnavailable as error:
            _log.info("A probe could not reach the database: %s", error)
            self.answer = "it cannot be reached"
        except QueueError as error:
            _log.warning("A probe's query failed: %s", error)
            self.answer = "it refused the query"
        finally:
            self.answer = self.answer or "it could not be queried"
            self.answered.set()


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of `check_queues`.

    Attributes:
        name: what was checked; for a queue ``queue NAME``.
        ok: whether it is ok.
        text: the finding, and what to do if it is not ok.
    """

    name: str
    ok: bool
    text: str


# Work that has waited for this long has nobody to do it.
_NEGLECTED_SECONDS: Final = 60.0


def check_queues(
    service: QueueService, *, max_age: Duration | None = None, timeout: Duration = 5.0
) -> list[Check]:
    """Check from outside whether the queues of a database are being served.

    It reads a few rows by index, and changes and creates nothing. It reports a missing reaper if a
    consumer or a lease expired, or a schedule was due, more than a minute ago. It reports a missing
    consumer of a queue if a message has been ready for a minute, no living consumer says that it
    handles the queue, and none holds a message of it.

    Args:
        service: of the database; it need not be started.
        max_age: how long the oldest ready message of a queue may have been due, unless the queue
            has a ``critical_age``; None: any time.
        timeout: time limit for all checks.

    Returns:
        The checks; they end early if one makes the others impossible.

    Raises:
        TypeError, ValueError: an argument has an invalid value.
    """
    seconds = _seconds(timeout, "timeout")
    limit = None if max_age is None else _seconds(max_age, "max_age")
    checks: list[Check] = []

    def read() -> None:
        checks.extend(_checks(inside.Inspection(service, seconds), limit))

    try:
        # The time limit of a statement does not cover an attempt to connect.
        done = inside.within(service, seconds, read)
    except DatabaseUnavailable as error:
        return [Check("database", ok=False, text=str(error))]
    if not done:
        longest = duration_text(seconds)
        text = f"no answer within {longest}: check whether it runs, and what keeps it busy"
        return [Check("database", ok=False, text=text)]
    return checks


def _checks(inspection: inside.Inspection, max_age: float | None) -> Iterator[Check]:
    lacking = inspection.missing_tables()
    yield Check("database", ok=True, text="it answers")
    if lacking:
        text = f"there is no table {lacking[0]}: create a queue, or check --schema and the database"
        yield Check("schema", ok=False, text=text)
        return
    yield Check("schema", ok=True, text="the tables exist")
    alive, dead = inspection.consumers()
    serving = [each for each in alive if not each.permanent]
    text = f"{len(serving)} alive" if serving else "none is alive: start a worker"
    yield Check("consumers", ok=bool(serving), text=text)
    overdue = [each for each, seconds in dead if seconds > _NEGLECTED_SECONDS]
    waits = [f"{len(overdue)} dead consumers"] if overdue else []
    queues = inspection.queues()
    if inspection.overdue_schedules(_NEGLECTED_SECONDS):
        waits.append("schedules that are due")
    waits += [
        f"expired leases of {each.name}"
        for each in queues
        if each.oldest_lease is not None and each.oldest_lease > _NEGLECTED_SECONDS
    ]
    waiting = ", ".join(waits)
    text = (
        f"no reaper is running, and these wait for one: {waiting}. Start one with: "
        "queue-over-sql reaper"
    )
    yield Check("reaper", ok=not waits, text=text if waits else "nothing waits for a reaper")
    for each in queues:
        yield _check_of_queue(each, max_age, len(inspection.handlers_of(alive, each.name)))


def _check_of_queue(queue: inside.QueueSnapshot, max_age: float | None, handlers: int) -> Check:
    name, age = f"queue {queue.name}", queue.oldest_ready
    if queue.problem is not None:
        return Check(name, ok=False, text=queue.problem)
    if age is None:
        return Check(name, ok=True, text="no message is ready")
    since = f"the oldest ready message has been due for {duration_text(round(age))}"
    if queue.paused:
        return Check(name, ok=True, text=f"paused; {since}")
    if queue.critical_age is not None:
        max_age = queue.critical_age
    if max_age is not None and age > max_age:
        most = duration_text(max_age)
        text = f"{since}, more than {most}: add workers, or find out what delays them"
        return Check(name, ok=False, text=text)
    if age > _NEGLECTED_SECONDS and not (handlers or queue.is_claimed):
        text = f"{since}, and no consumer handles this queue: start a worker for it"
        return Check(name, ok=False, text=text)
    return Check(name, ok=True, text=since)
