"""The speed of the dashboard's pages on a large database, and the load of many viewers.

One queue has half of all live and half of all archived messages, a tenth of which are dead letters
with one of twenty errors. The others share the rest. A day of history and a full audit are there,
too. Each page is fetched from a server in its own thread, as by a browser; before each request the
shared results are forgotten, so that none is faster because of the one before. Searches for texts
are not among those pages: they read payloads until they have found enough, or their time is over.
Then ``--viewers`` viewers in their own process watch the overview for some minutes: each
listens for events and fetches changes, while a message is published and taken every tenth of a
second. Their cost is the processor time of the database, less what it takes when nobody watches; it
is compared with that of a claim with its release. Meanwhile the memory of the dashboard's process,
which includes the publisher, is recorded. With ``--rounds 0`` only the viewers are measured, such
as for ``--minutes 60``; the result is then a file of its own.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import statistics
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
from sqlalchemy import event, insert, select, text

from queue_over_sql import Publication, QueueService
from queue_over_sql.observability.history import BOUNDS
from queue_over_sql.service import parts_of
from queue_over_sql.values.fingerprints import fingerprint
from queue_over_sql.values.limits import HISTORY_COUNTS
from queue_over_sql.web.app import create_app
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore
from scripts.benchmarks.ageing import message, parser_of, version_of
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
    run_alone,
    was_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from queue_over_sql import Queue

NAME: Final = "dashboard"
MEMORY: Final = "dashboard_memory"
BIG: Final = "jobs_000"
_KEY: Final = "order-7"
PAGES: Final = {
    "queues": "/",
    "a queue": f"/queues/{BIG}",
    "a queue, the last day": f"/queues/{BIG}?span=day",
    "messages": f"/queues/{BIG}/messages",
    "messages, newest first": f"/queues/{BIG}/messages?order=newest",
    "messages with a key": f"/queues/{BIG}/messages?key={_KEY}",
    "messages that are held (none)": f"/queues/{BIG}/messages?status=held",
    "archive, newest first": f"/queues/{BIG}/archive",
    "archive, only failed": f"/queues/{BIG}/archive?status=failed",
    "archive, one error": f"/queues/{BIG}/archive?error={{error}}",
    "a message": f"/queues/{BIG}/messages/{{id}}",
    "a dead letter": f"/queues/{BIG}/messages/{{dead}}",
    "dead letters of all queues": "/dead",
    "dead letters by their error": f"/queues/{BIG}/dead",
    "search for an id": "/search?q={id}",
    "search for a key": f"/search?q={_KEY}",
    "consumers": "/consumers",
    "schedules": "/schedules",
    "topics": "/topics",
    "health": "/health",
    "audit": "/audit",
    "audit of a person, and of a day": "/audit?who=ada&day={day}",
}
LONGEST: Final = 150
"""Milliseconds in which a page should be there, at the 95th percentile."""
# How many claims the time of one is the mean of.
_CLAIMS: Final = 300
# Of the time: how often the page shows the memory.
_EACH: Final = 10
_AUDITED: Final = 100_000
_DAY: Final = 86_400
_MICROSECONDS: Final = 1_000_000
_NOUNS: Final = ("account", "address", "article", "bank", "card", "country", "order", "voucher")


def _case(text: str, each: Iterable[str]) -> str:
    # One of these for each tenth row, and nothing for the others.
    whens = (f"WHEN {10 * n} THEN {text.format(one)}" for n, one in enumerate(each))
    return f"CASE id % {20 * len(_NOUNS)} {' '.join(whens)} END"


_ERRORS: Final = tuple(
    f"{kind}: no {what} " for kind in ("LookupError", "TimeoutError") for what in _NOUNS
)
_ARCHIVE: Final = f"""
    INSERT INTO queue_{{name}}_archive (id, message_key, kind, payload, headers, priority,
      published_at, scheduled_at, available_at, attempt_count, last_error, error_fingerprint,
      finished_at, outcome)
    SELECT -id, message_key, kind, payload, headers, priority, published_at, scheduled_at,
      available_at, 1, {_case("'{}' || id", _ERRORS)},
      {_case("'{}'", map(fingerprint, _ERRORS))},
      published_at - ({{count}} - id) * {{step}},
      CASE WHEN id % 10 = 0 THEN 'failed' ELSE 'done' END
    FROM queue_{{name}}"""


def fill(service: QueueService, queues: int, messages: int) -> None:
    """Make the queues, with as many live as archived messages, which ended in the last two days."""
    others = messages // 2 // max(1, queues - 1)
    for number in range(queues):
        queue = service.create_queue(f"jobs_{number:03}", archive="all")
        count = messages // 2 if number == 0 else others
        queue.load(Publication(message(n), key=f"order-{n}") for n in range(count))
        step = 2 * _DAY * _MICROSECONDS // count
        with parts_of(service).connections.engine.begin() as connection:
            archived = _ARCHIVE.format(name=queue.name, count=count, step=step)
            connection.execute(text(archived))
    _fill_history(service, queues)
    _fill_audit(service)
    if parts_of(service).connections.dialect.features.name == "postgresql":
        run_alone(service, ["VACUUM ANALYZE"])


def _fill_history(service: QueueService, queues: int) -> None:
    parts = parts_of(service)
    now = int(time.time()) // 60
    counts = dict.fromkeys(HISTORY_COUNTS, 3)
    spread = json.dumps([1] * (len(BOUNDS) + 1))
    same = {"process": "benchmark", "waited": spread, "handled": spread} | counts
    table = parts.system().history
    for number in range(queues):
        queue = {"table_prefix": parts.settings.table_prefix, "queue": f"jobs_{number:03}"}
        rows = [same | queue | {"minute": now - ago} for ago in range(_DAY // 60)]
        with parts.connections.engine.begin() as connection:
            connection.execute(insert(table), rows)


def _fill_audit(service: QueueService) -> None:
    """Write as many rows as are kept: one of twenty people does something each second."""
    store = WebStore(service, WebSettings())
    store.prepare()
    store.write_audit("ada", "admin", "pause", queue=BIG)
    table = store.tables.audit
    with parts_of(service).connections.engine.begin() as connection:
        last = connection.execute(select(table)).one()._asdict()
        # An id begins with its time.
        second = last["id"] // last["at"] * _MICROSECONDS
        rows = [
            {
                **last,
                "id": last["id"] - ago * second,
                "at": last["at"] - ago * _MICROSECONDS,
                "who": "ada" if ago % 20 == 0 else f"person-{ago % 20}",
            }
            for ago in range(1, _AUDITED)
        ]
        connection.execute(insert(table), rows)


def page_times(
    root: str, places: Mapping[str, Any], rounds: int, forget: Callable[[], None]
) -> dict[str, list[float]]:
    """Milliseconds of each page; the first request does not count."""
    found: dict[str, list[float]] = {}
    with httpx2.Client(base_url=root, timeout=120, trust_env=False) as client:
        for name, path in PAGES.items():
            times = []
            for _ in range(rounds + 1):
                forget()
                began = time.perf_counter()
                client.get(path.format_map(places)).raise_for_status()
                times.append(round((time.perf_counter() - began) * 1e3, 2))
            found[name] = times[1:]
    return found


def viewers_cost(
    service: QueueService, database: _DatabaseTime, root: str, viewers: int, seconds: float
) -> dict[str, Any]:
    """Milliseconds of the database per viewer and second, and those of one claim.

    Also the memory of this process in MiB, at about 20 times.
    """
    memory: list[float] = []
    other = QueueService(parts_of(service).connections.engine.url)
    database.follow(other)
    with other:
        queue = other.queue("jobs_001")

        def work(seconds: float) -> float:
            before, began = database.milliseconds(), time.monotonic()
            while (now := time.monotonic() - began) < seconds:
                if now >= len(memory) * seconds / 20:
                    memory.append(_memory())
                queue.publish(message(0))
                _claim(queue)
                time.sleep(0.1)
            return (database.milliseconds() - before) / seconds

        unwatched = work(min(seconds, 60.0))
        memory.clear()
        watching = get_context("spawn").Process(target=_watch_all, args=(root, viewers, seconds))
        watching.start()
        watched = work(seconds)
        watching.join()
        if watching.exitcode:
            raise SystemExit("a viewer failed")
        before = database.milliseconds()
        for _ in range(_CLAIMS):
            _claim(queue)
        claim = (database.milliseconds() - before) / _CLAIMS
    return {"viewer": (watched - unwatched) / viewers, "claim": claim, "memory": memory}


def _claim(queue: Queue[Any]) -> None:
    for taken in queue.consume():
        taken.release()


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


class _DatabaseTime:
    """The processor time of the database: of a server's processes, or of the calls of SQLite."""

    def __init__(self, service: QueueService) -> None:
        self._server: int | None = None
        if parts_of(service).connections.dialect.features.name == "postgresql":
            with parts_of(service).connections.engine.connect() as connection:
                session = connection.scalar(text("SELECT pg_backend_pid()"))
            self._server = _process(session)[0]
        self.follow(service)

    def follow(self, service: QueueService) -> None:
        """Also measure the future connections of this service."""

        def connect(*given: Any) -> None:
            given[3]["factory"] = _MeasuredConnection

        if self._server is None:
            event.listen(parts_of(service).connections.engine, "do_connect", connect)

    def milliseconds(self) -> float:
        """Until now."""
        if self._server is None:
            return _MeasuredCursor.nanoseconds / 1e6
        processes = [_process(int(each.name)) for each in Path("/proc").glob("[0-9]*")]
        children = [ticks for parent, ticks, _ in processes if parent == self._server]
        _, own, ended = _process(self._server)
        return (own + ended + sum(children)) * 1e3 / os.sysconf("SC_CLK_TCK")


def _process(number: int) -> tuple[int, int, int]:
    """The parent of a process, its ticks, and those of its ended children."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0, 0, 0
    return int(fields[1]), sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))


class _MeasuredCursor(sqlite3.Cursor):
    """Adds up the processor time of the calls of all cursors."""

    nanoseconds = 0

    def execute(self, *given: Any) -> Any:
        return self._measured(super().execute, *given)

    def fetchall(self) -> Any:
        return self._measured(super().fetchall)

    def fetchone(self) -> Any:
        return self._measured(super().fetchone)

    def _measured(self, call: Callable[..., Any], *given: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return call(*given)
        finally:
            _MeasuredCursor.nanoseconds += time.thread_time_ns() - began


class _MeasuredConnection(sqlite3.Connection):
    def cursor(self, *_: Any) -> Any:
        return super().cursor(_MeasuredCursor)


def _watch_all(root: str, viewers: int, seconds: float) -> None:
    end, failed = time.monotonic() + seconds, []

    def watch() -> None:
        try:
            _watch(root, end)
        except Exception as error:  # noqa: BLE001 - it is raised where all have ended
            failed.append(error)

    threads = [threading.Thread(target=watch) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _watch(root: str, end: float) -> None:
    with httpx2.Client(base_url=root, timeout=30, trust_env=False) as client:
        client.get("/")
        with client.stream("GET", "/events") as events:
            for line in events.iter_lines():
                if time.monotonic() > end:
                    return
                if line == "event: changed":
                    client.get("/?live=1").raise_for_status()


def measure(engine: str, options: Any) -> dict[str, Any]:
    """Measure one engine."""
    with ExitStack() as stack:
        url = stack.enter_context(databases_of(engine))("dashboard")
        service = QueueService(url)
        database = _DatabaseTime(service)
        stack.enter_context(service)
        fill(service, options.queues, options.messages)
        app = create_app(service, WebSettings(open_role=Role.ADMIN))
        root = stack.enter_context(serving(app))
        places = _places(service)
        forget = app.state.snapshots.forget
        times = page_times(root, places, options.rounds, forget) if options.rounds else {}
        cost = viewers_cost(service, database, root, options.viewers, options.minutes * 60)
        return {"version": version_of(service), "milliseconds": times, "cost": cost}


def _places(service: QueueService) -> dict[str, Any]:
    """What is in the addresses of pages."""
    queue = service.queue(BIG)
    (live,), (dead,) = queue.messages().list(1), queue.archive.messages(status="failed").list(1)
    day = datetime.now(UTC).date() - timedelta(days=1)
    return {"id": live.id, "dead": dead.id, "error": fingerprint(_ERRORS[0]), "day": day}


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    engines = result["engines"]
    # Results of earlier versions had none of these.
    filled = (
        f"A tenth of the archived messages are dead letters with one of {result['errors']} errors. "
        f"There are {result['audited']:,} rows in the audit, and a day of history.\n"
        if "errors" in result
        else ""
    )
    names = [f"{TITLES[engine]} {found['version']}" for engine, found in engines.items()]
    lines = [
        "## The dashboard on a large database",
        "",
        f"""\
{result["queues"]} queues with {result["messages"]:,} live and as many archived messages, half of
each in one queue. Milliseconds until a page is there: the median of {result["rounds"]} looks and
the 95th percentile; for each look the dashboard counts anew.
{filled}Then {result["viewers"]} viewers for
{result["minutes"]:g} minutes, who share one look: the processor time that each costs the database
in a second, beside that of one claim with its release; and the memory of the dashboard's process
after a quarter of the time and at its end.""",
        "",
        f"| page | {' | '.join(names)} |",
        f"|---|{'--:|' * len(names)}",
    ]
    pages = next(iter(engines.values()))["milliseconds"]
    for page in pages:
        cells = [_cell(found["milliseconds"][page]) for found in engines.values()]
        lines.append(f"| {page} | {' | '.join(cells)} |")
    for name, key in (("a viewer, ms in each second", "viewer"), ("one claim, ms", "claim")):
        cells = [f"{found['cost'][key]:.2f}" for found in engines.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = [_memory_cell(found["cost"]["memory"]) for found in engines.values()]
    lines.append(f"| memory, MiB | {' | '.join(cells)} |")
    slow = [
        page
        for page in pages
        if any(_p95(e["milliseconds"][page]) > LONGEST for e in engines.values())
    ]
    said = f"Longer than {LONGEST} ms in the 95th percentile: {', '.join(slow) or 'none of them'}."
    lines += ["", said, "", origin_of(result)]
    if was_run(MEMORY):
        lines += ["", *_hour(read_result(MEMORY))]
    return "\n".join(lines) + "\n"


def _hour(result: dict[str, Any]) -> list[str]:
    lines = [
        f"""\
The memory of the process in MiB while {result["viewers"]} viewers watch for
{result["minutes"]:g} minutes, at equal intervals from the beginning to the end:""",
        "",
        f"| engine | {' | '.join(f'{n} %' for n in range(0, 100, _EACH))} | end |",
        f"|---|{'--:|' * (100 // _EACH + 1)}",
    ]
    for engine, found in result["engines"].items():
        memory = found["cost"]["memory"]
        cells = [*memory[:: len(memory) * _EACH // 100], memory[-1]]
        lines.append(f"| {TITLES[engine]} | {' | '.join(f'{each:.0f}' for each in cells)} |")
    return [*lines, "", origin_of(result)]


def _p95(times: Sequence[float]) -> float:
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]


def _cell(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.0f} ({_p95(times):.0f})"


def _memory_cell(memory: Sequence[float]) -> str:
    return f"{memory[len(memory) // 4]:.0f} → {memory[-1]:.0f}"


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("postgresql", "sqlite"))
    parser.add_argument("--queues", type=int, default=100, help="how many there are")
    parser.add_argument("--messages", type=int, default=1_000_000, help="live, and archived")
    parser.add_argument("--rounds", type=int, default=20, help="looks at each page")
    parser.add_argument("--viewers", type=int, default=20, help="at once")
    parser.add_argument("--minutes", type=float, default=1.0, help="that they watch")
    options = parser.options(
        {"queues": 10, "messages": 10_000, "rounds": 2, "viewers": 5, "minutes": 0.1}
    )
    if options.markdown:
        print(section(), end="")
        return
    names = ("queues", "messages", "rounds", "viewers", "minutes")
    sizes = {name: getattr(options, name) for name in names}
    sizes |= {"errors": len(_ERRORS), "audited": _AUDITED}
    file = NAME if options.rounds else MEMORY
    parser.measure_each(NAME, options, sizes, lambda engine, _: measure(engine, options), file)
    if options.rounds:
        print(section())


if __name__ == "__main__":
    main()
