"""Commands that show what the queues hold: `stats` and `top`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import select
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from queue_over_sql.cli.consumers import CONSUMER_COLUMNS, consumer_row
from queue_over_sql.cli.options import MONITORING_PANEL, NO_QUEUE, OnlyQueue, duration
from queue_over_sql.cli.output import build_table, in_yellow, without_spare
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import Stop, stop_on_signals
from queue_over_sql.cli.values import format_bytes
from queue_over_sql.errors import DatabaseUnavailable, visible
from queue_over_sql.values.humanize import count_words, counted, format_duration
from queue_over_sql.values.states import DEAD

if TYPE_CHECKING:
    from rich.console import Group

    from queue_over_sql import ConsumerInfo, QueueService, QueueStats
    from queue_over_sql.observability import Activity, SharedSnapshot

STATS_COLUMNS: Final = (
    *("queue", "#ready", "#delayed", "#claimed", "#held", "#archived", "#dead", "#oldest ready"),
)
# After this time it looks again, however slow a look is.
_LONGEST_PAUSE: Final = 30.0


commands = Commands(MONITORING_PANEL)


@commands.add("stats")
def stats(
    session: CommandSession,
    *,
    queue: OnlyQueue = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Refresh until Ctrl-C. On a terminal, show the screen of queue-over-sql top.",
        ),
    ] = False,
    interval: Annotated[
        float,
        duration(
            "Time between two refreshes of --watch; longer if a refresh is slow.", show_default="1s"
        ),
    ] = 1.0,
    since: Annotated[
        float | None,
        duration(
            "Show the recorded activity of this last period, such as 1h, instead of the current "
            "counts."
        ),
    ] = None,
) -> None:
    """Count messages by status, in one queue or in all. Exit code 3: there is no queue.

    "dead" counts the dead letters in the archive: messages that failed, were rejected or
    expired.

    With --since the command shows recent activity as small charts: messages published, done and
    dead (failed or rejected, not expired), and failures of handlers. A service records this
    activity only if it was created with observer=History().

    With --since and --json the command prints one line per queue and minute. The field "released"
    counts messages that returned to their queue without a counted attempt. For example, when a
    worker stops, it releases the messages that it has not begun.
    """
    with session.connect() as service:
        if since is not None:
            _show_history(session, service, queue, since)
        elif watch and _has_screen(session):
            _watch(session, service, queue, interval)
        else:
            _print(session, service, _reading_of(service, queue, _checked(interval)), again=watch)


@commands.add("top")
def top(
    session: CommandSession,
    *,
    queue: OnlyQueue = None,
    interval: Annotated[
        float,
        duration("Time between two refreshes; longer if a refresh is slow.", show_default="1s"),
    ] = 1.0,
) -> None:
    """Watch the queues and their consumers on the whole terminal, until q or Ctrl-C.

    The columns are those of stats, and two more: in/s is the number of messages published per
    second, out/s the number finished or removed per second. Both are for the time since the last
    refresh. A dash means that the value is not known. In the column "dead", the number after the
    plus sign counts the dead letters since this command started.

    A second table lists the consumers and how many messages each of them holds. Press s to sort by
    the next column. A narrow terminal shows fewer columns. While the database cannot be reached,
    the screen says so and shows the last counts. Exit code 3: there is no queue.
    """
    if not _has_screen(session):
        raise typer.BadParameter(
            "top requires a terminal; without one, use: queue-over-sql stats --watch"
        )
    with session.connect() as service:
        _watch(session, service, queue, interval)


def _has_screen(session: CommandSession) -> bool:
    out = session.output.out
    return out.is_terminal and not out.is_dumb_terminal and not session.output.machine


def _checked(interval: float) -> float:
    if interval <= 0:
        raise typer.BadParameter("it must be longer than zero", param_hint="--interval")
    return interval


def _nothing(session: CommandSession, service: QueueService) -> NoReturn:
    # If there are queues, this raises what keeps them from being counted.
    for queue in service.queues():
        queue.stats()
    session.output.nothing(NO_QUEUE)


def _print(
    session: CommandSession,
    service: QueueService,
    snapshot: SharedSnapshot[dict[str, QueueStats]],
    *,
    again: bool,
) -> None:
    if not snapshot.seen():
        _nothing(session, service)
    signals: contextlib.AbstractContextManager[Stop | None] = (
        stop_on_signals() if again else contextlib.nullcontext()
    )
    with signals as stop:
        _show(session, snapshot.seen())
        while stop is not None and not stop.requested.wait(snapshot.pause):
            _show(session, snapshot.seen())


HISTORY_COLUMNS = (
    *("queue", "", "activity", "#"),
    *("#wait p50", "#wait p95", "#handler p50", "#handler p95"),
)
_PUBLISHED: Final = "published"
_DRAWN: Final = {
    _PUBLISHED: ("published",),
    "done": ("done",),
    "failures": ("handler_failures",),
    "dead": ("failed", "rejected", "expired"),
}
_STEPS = 30
_BARS = " ▁▂▃▄▅▆▇█"


def _show_history(
    session: CommandSession, service: QueueService, queue: str | None, since: float
) -> None:
    from queue_over_sql.observability.history import Minute, quantile, read_history  # only here

    minutes = read_history(service, since, queue)
    if not minutes:
        session.output.nothing(
            "No activity is recorded for this period. To record it, give your services "
            "observer=History()."
        )
    if session.output.machine:
        for minute in minutes:
            session.output.record(dataclasses.asdict(minute))
        return
    last = max(minute.begins_at for minute in minutes)
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(minute.queue for minute in minutes):
        total, steps = Minute(name, last), {what: [0] * _STEPS for what in _DRAWN}
        for minute in minutes:
            if minute.queue == name:
                total.add(minute)
                ago = (last - minute.begins_at).total_seconds()
                step = -1 - min(_STEPS - 1, int(ago / max(since, 60.0) * _STEPS))
                for what, counts in _DRAWN.items():
                    steps[what][step] += sum(getattr(minute, count) for count in counts)
        times = [quantile(each, q) for each in (total.waited, total.handled) for q in (0.5, 0.95)]
        rows += _history_rows(name, steps, times)
    session.output.table(None, HISTORY_COLUMNS, rows)


def _history_rows(
    name: str, steps: dict[str, list[int]], times: Sequence[float | None]
) -> list[tuple[str, ...]]:
    most = max(map(max, steps.values()))
    drawn = [what for what, counts in steps.items() if what == _PUBLISHED or any(counts)]
    rows = [("", what, _drawn(steps[what], most), f"{sum(steps[what]):,}") for what in drawn]
    shown = ("-" if seconds is None else f"≤ {_short(seconds)}" for seconds in times)
    none = [""] * len(times)
    return [(name, *rows[0][1:], *shown), *((*row, *none) for row in rows[1:])]


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else format_duration(seconds)


def _drawn(steps: Sequence[int], most: int) -> str:
    return "".join(_BARS[-(-step * (len(_BARS) - 1) // max(most, 1))] for step in steps)


def _reading_of(
    service: QueueService, name: str | None, interval: float
) -> SharedSnapshot[dict[str, QueueStats]]:
    from queue_over_sql.observability import Counting, SharedSnapshot, count_queues

    counting = Counting()

    def read(before: object) -> dict[str, QueueStats]:
        del before
        if name is not None:
            return {name: service.queue(name).stats()}
        return count_queues(service, counting)

    return SharedSnapshot(read, interval, max(interval, _LONGEST_PAUSE))


def _show(session: CommandSession, found: dict[str, QueueStats]) -> None:
    if not session.output.machine:
        session.output.table(None, *_stats_table(found))
        return
    for name, stats_of in found.items():
        session.output.record({"queue": name, **dataclasses.asdict(stats_of)})


def _stats_table(
    found: Mapping[str, QueueStats], died: Mapping[str, int] | None = None
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    died = died or {}
    log = any(stats.wal_bytes is not None for stats in found.values())
    rows = [
        (
            name,
            *(f"{count:,}" for count in (s.ready, s.delayed, s.claimed, s.held, s.archived)),
            f"{_dead(s):,}" + (f" +{more:,}" if (more := died.get(name)) else ""),
            "-" if (age := s.oldest_ready_age) is None else format_duration(age.total_seconds()),
            *((format_bytes(s.wal_bytes),) if log else ()),
            in_yellow("paused") if s.paused else "",
        )
        for name, s in found.items()
    ]
    return (*STATS_COLUMNS, *(("#log",) if log else ()), ""), rows


_ORDERS: Final[Mapping[str, Callable[[str, Activity], float]]] = {
    "queue": lambda *_: 0,
    "ready": lambda name, seen: seen.queues[name].ready,
    "claimed": lambda name, seen: seen.queues[name].claimed,
    "oldest ready": lambda name, seen: (
        seen.queues[name].oldest_ready_age or timedelta()
    ).total_seconds(),
    "dead": lambda name, seen: _dead(seen.queues[name]),
    "in/s": lambda name, seen: seen.published.get(name, 0.0),
    "out/s": lambda name, seen: seen.finished.get(name, 0.0),
}
# What a narrow terminal is spared, in this order.
_SPARE: Final = (
    *("#log", "#archived", "#held", "#delayed", "#out/s", "#in/s", "#oldest ready", "#dead"),
)
_SPARE_OF_CONSUMERS: Final = ("#up for", "…host", "#pid", "id")
# Lines that no row of a table is in.
_LINES: Final = 5
_QUIT: Final = {"q", "Q"}
_POLL_SECONDS: Final = 0.05


def _watch(
    session: CommandSession, service: QueueService, queue: str | None, interval: float
) -> None:
    from rich.live import Live

    from queue_over_sql.observability import ActivitySnapshots, SharedSnapshot

    pause = max(_checked(interval), _LONGEST_PAUSE)
    snapshot = SharedSnapshot(ActivitySnapshots(service, queue).take, interval, pause)
    if not snapshot.seen().queues:
        _nothing(session, service)
    out, orders, key = session.output.out, itertools.cycle(_ORDERS), ""
    order = next(orders)
    with (
        stop_on_signals() as stop,
        _keyboard() as pressed,
        Live(console=out, screen=True, auto_refresh=False) as live,
    ):
        while key not in _QUIT and not stop.requested.is_set():
            seen, problem, left = snapshot.last or snapshot.seen(), "", max(interval, 1.0)
            try:
                seen = snapshot.seen()
                left = snapshot.pause - snapshot.age
            except DatabaseUnavailable as error:
                problem = str(error)
            live.update(_screen(seen, order, out.width, out.height, problem), refresh=True)
            key = pressed(stop, left)
            order = next(orders) if key == "s" else order


@contextlib.contextmanager
def _keyboard() -> Iterator[Callable[[Stop, float], str]]:
    # Keys come without Enter; the terminal's own settings return at the end.
    if sys.stdin is None or not sys.stdin.isatty():
        yield functools.partial(_pressed, ())
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield functools.partial(_pressed, (number,))
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _pressed(keyboards: Sequence[int], stop: Stop, seconds: float) -> str:
    ends_at = time.monotonic() + max(seconds, _POLL_SECONDS)
    while not stop.requested.is_set() and (left := ends_at - time.monotonic()) > 0:
        for number in select.select(keyboards, (), (), min(left, _POLL_SECONDS))[0]:
            # Nothing: the terminal has gone.
            return os.read(number, 1).decode(errors="replace") or "q"
    return ""


def _screen(seen: Activity, order: str, width: int, height: int, problem: str = "") -> Group:
    from rich.console import Group
    from rich.text import Text

    problem_lines = textwrap.wrap(visible(problem), width, max_lines=3) or [""]
    room = max(2, height - _LINES - len(problem_lines) + 1)
    consumers = seen.consumers[: max(1, room // 3, room - len(seen.queues))]
    names = sorted(seen.queues, key=lambda name: (-_ORDERS[order](name, seen), name))
    names = names[: max(1, room - len(consumers))]
    shown = f"{len(names)} of " if len(names) < len(seen.queues) else ""
    status_line = (
        f"{datetime.now().astimezone():%H:%M:%S}  q: quit  s: sort, by {order}  "
        f"{shown}{counted(len(seen.queues), 'queue')}, {counted(len(seen.consumers), 'consumer')}"
    )
    columns, rows = without_spare(*_activity_table(seen, names), width, _SPARE)
    holders, holds = without_spare(*_holders_table(seen, consumers), width, _SPARE_OF_CONSUMERS)
    return Group(
        Text(status_line, style="dim", no_wrap=True, overflow="ellipsis"),
        Text("\n".join(problem_lines), style="red"),
        build_table(None, columns, rows, width),
        "",
        build_table(None, holders, holds, width),
    )


def _activity_table(
    seen: Activity, names: Sequence[str]
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    (_, *columns, state), rows = _stats_table(
        {name: seen.queues[name] for name in names}, seen.died
    )
    added = [
        [_rate(rates.get(name)) for rates in (seen.published, seen.finished)] for name in names
    ]
    return ("…queue", *columns, "#in/s", "#out/s", state), [
        (*row[:-1], *more, row[-1]) for row, more in zip(rows, added, strict=True)
    ]


def _dead(stats: QueueStats) -> int:
    return sum(getattr(stats, outcome) for outcome in DEAD)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else count_words(rate)


def _holders_table(
    seen: Activity, consumers: Sequence[ConsumerInfo]
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    holds = (f"{seen.holds.get(each.consumer_id, 0):,}" for each in consumers)
    return (*CONSUMER_COLUMNS, "#holds"), [
        (*consumer_row(each), held) for each, held in zip(consumers, holds, strict=True)
    ]
