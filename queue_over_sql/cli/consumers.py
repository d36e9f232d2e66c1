"""Commands that look: `stats` and `consumers`; and those on durable consumers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from queue_over_sql import QueueNotFound
from queue_over_sql.cli.options import (
    MONITORING_PANEL,
    NO_QUEUE,
    YesOption,
    argument,
    confirm,
    duration,
)
from queue_over_sql.cli.output import build_table, in_yellow
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.cli.signals import stop_on_signals
from queue_over_sql.cli.values import format_age, format_bytes
from queue_over_sql.plots.words import counted, format_duration

if TYPE_CHECKING:
    from queue_over_sql import ConsumerInfo, QueueService, QueueStats
    from queue_over_sql.observability.counting import SharedLook

DURABLE_COLUMNS: Final = (
    *("durable", "queue", "#epoch", "#rounds out", "#messages out", "…owner", "#last seen"),
    "#kept for",
)

ConsumerId = Annotated[str, argument("CONSUMER", "The consumerId of a streaming query.")]


durable_commands = Commands(
    MONITORING_PANEL,
    "consumer",
    help="Durable consumers: the streaming queries that read queues (see `consumers`).",
)


@durable_commands.add("release")
def release(session: Session, *, consumer: ConsumerId, yes: YesOption = False) -> None:
    """Release the messages of a query that will not restart; other consumers get them at once.

    If the query still runs, this stops it. Messages whose results it wrote but did not acknowledge
    are delivered again.
    """
    confirm(f"Release all messages that {consumer} holds, and stop it if it still runs?", yes=yes)
    with session.connect() as service:
        count = service.release_consumer(consumer)
    human = f"Released {counted(count, 'message')} of {consumer}."
    session.output.record({"consumer_id": consumer, "released": count}, human=human)


@durable_commands.add("drop")
def drop(session: Session, *, consumer: ConsumerId, yes: YesOption = False) -> None:
    """Delete a durable consumer and release the messages that it holds.

    If its query is started again with the old checkpoint, it is rejected.
    """
    confirm(f"Delete {consumer} and release all messages that it holds?", yes=yes)
    with session.connect() as service:
        count = service.drop_consumer(consumer)
    human = f"Deleted {consumer} and released {counted(count, 'message')}."
    session.output.record({"consumer_id": consumer, "released": count}, human=human)


def _outstanding(service: QueueService, consumer: ConsumerInfo) -> int | None:
    from queue_over_sql.durable.consumer import DurableConsumer  # only where there is one

    try:
        queue = service.queue(consumer.queue or "")
    except QueueNotFound:
        return None
    return DurableConsumer(queue, consumer.consumer_id, owner="").outstanding()


def _durable_row(consumer: ConsumerInfo, held: int | None) -> tuple[object, ...]:
    rounds = (consumer.claimed_round or 0) - (consumer.acked_round or 0)
    kept = consumer.expires_at - consumer.heartbeat_at
    return (
        consumer.consumer_id,
        consumer.queue,
        consumer.epoch,
        f"{rounds:,}",
        "-" if held is None else f"{held:,}",
        consumer.owner or "released",
        f"{format_age(consumer.heartbeat_at)} ago",
        "ever" if consumer.never_expires else format_duration(kept.total_seconds()),
    )


STATS_COLUMNS = (
    *("queue", "#ready", "#delayed", "#claimed", "#held", "#archived", "#dead", "#oldest ready"),
)
CONSUMER_COLUMNS = ("…name", "…host", "#pid", "id", "#up for", "#last heartbeat")
SHOWN_OF_ID = 8
# After this time --watch refreshes, however slow a refresh is.
_LONGEST_PAUSE = 30.0


commands = Commands(MONITORING_PANEL)


@commands.add("stats")
def stats(
    session: Session,
    *,
    queue: Annotated[str | None, argument("QUEUE", "Only this queue.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        duration(
            "Time between two refreshes of --watch; longer if a refresh is slow.", show_default="1s"
        ),
    ] = 1.0,
    since: Annotated[
        float | None,
        duration(
            "Show the history of this last period instead, such as 1h, as services recorded it."
        ),
    ] = None,
) -> None:
    """Count messages by status, in one queue or in all. Exit code 3: there is no queue.

    "dead" counts the dead letters in the archive: messages that failed or were rejected.

    With --since it shows recent activity as small charts: messages published, done and dead, and
    failures of handlers. Only services that have the observer `History` record it. With --json it
    prints one line per queue and minute. There, "released" counts messages that returned to their
    queue without a counted attempt, as a worker releases those that it did not begin when it stops.
    """
    if interval <= 0:
        raise typer.BadParameter("it must be longer than zero", param_hint="--interval")
    with session.connect() as service:
        if since is not None:
            _show_history(session, service, queue, since)
            return
        look = _look_at(service, queue, interval)
        if not look.seen():
            session.output.nothing(NO_QUEUE)
        if not watch:
            _show(session, look.seen())
        elif session.output.machine or not session.output.out.is_terminal:
            with stop_on_signals() as stop:
                _show(session, look.seen())
                while not stop.asked.wait(look.pause):
                    _show(session, look.seen())
        else:
            _watch(session, look)


HISTORY_COLUMNS = (
    *("queue", "", "activity", "#"),
    *("#wait p50", "#wait p95", "#handler p50", "#handler p95"),
)
_PUBLISHED: Final = "published"
_DRAWN: Final = {
    _PUBLISHED: ("published",),
    "done": ("done",),
    "failures": ("handler_failures",),
    "dead": ("failed", "rejected"),
}
_STEPS = 30
_BARS = " ▁▂▃▄▅▆▇█"


def _show_history(session: Session, service: QueueService, queue: str | None, since: float) -> None:
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


def _look_at(
    service: QueueService, name: str | None, interval: float
) -> SharedLook[dict[str, QueueStats]]:
    from queue_over_sql.observability.counting import (  # only here
        Counting,
        SharedLook,
        count_queues,
    )

    counting = Counting()

    def look(before: object) -> dict[str, QueueStats]:
        del before
        if name is not None:
            return {name: service.queue(name).stats()}
        return count_queues(service, counting)

    return SharedLook(look, interval, max(interval, _LONGEST_PAUSE))


def _watch(session: Session, look: SharedLook[dict[str, QueueStats]]) -> None:
    from rich.live import Live  # only for --watch

    with (
        stop_on_signals() as stop,
        Live(console=session.output.out, auto_refresh=False, transient=False) as live,
    ):
        while True:
            live.update(build_table(None, *_stats_table(look.seen())), refresh=True)
            if stop.asked.wait(look.pause):
                return


def _show(session: Session, found: dict[str, QueueStats]) -> None:
    if not session.output.machine:
        session.output.table(None, *_stats_table(found))
        return
    for name, stats_of in found.items():
        session.output.record({"queue": name, **dataclasses.asdict(stats_of)})


def _stats_table(
    found: dict[str, QueueStats],
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    log = any(stats.wal_bytes is not None for stats in found.values())
    rows = [
        (
            name,
            *(f"{count:,}" for count in (s.ready, s.delayed, s.claimed, s.held, s.archived)),
            f"{s.failed + s.rejected + s.expired:,}",
            "-" if (age := s.oldest_ready_age) is None else format_duration(age.total_seconds()),
            *((format_bytes(s.wal_bytes),) if log else ()),
            in_yellow("paused") if s.paused else "",
        )
        for name, s in found.items()
    ]
    return (*STATS_COLUMNS, *(("#log",) if log else ()), ""), rows


@commands.add("consumers")
def consumers(session: Session) -> None:
    """List the registered consumers. Exit code 3: there is none.

    The table shows the first characters of each id, and ages; --json has complete ids and times.
    Durable consumers (streaming queries) have a separate table. It shows the epoch of the current
    query, its claimed rounds and messages that are not yet acknowledged, and how long these are
    kept without a heartbeat.
    """
    with session.connect() as service:
        found = service.consumers()
        durable = [consumer for consumer in found if consumer.durable]
        held = {each.consumer_id: _outstanding(service, each) for each in durable}
    running = [consumer for consumer in found if not consumer.durable]
    if not found:
        session.output.nothing("No consumer is registered.")
    session.output.listing(running, dataclasses.asdict, CONSUMER_COLUMNS, _consumer_row)
    session.output.listing(
        durable,
        lambda each: {**dataclasses.asdict(each), "outstanding": held[each.consumer_id]},
        DURABLE_COLUMNS,
        lambda each: _durable_row(each, held[each.consumer_id]),
    )


def _consumer_row(consumer: ConsumerInfo) -> tuple[object, ...]:
    return (
        consumer.name,
        consumer.host,
        "" if consumer.permanent else consumer.pid,
        consumer.consumer_id[:SHOWN_OF_ID],
        format_age(consumer.started_at),
        "none needed" if consumer.permanent else f"{format_age(consumer.heartbeat_at)} ago",
    )
