"""Commands that find messages and show them without claiming any: `peek` and `search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from queue_over_sql import Message, Queue, Selection
from queue_over_sql.cli.filters import (
    AnyStatus,
    Filters,
    KeyFilter,
    KindFilter,
    PayloadFilter,
    WhereFilter,
)
from queue_over_sql.cli.lines import payload_line
from queue_over_sql.cli.options import MESSAGES_PANEL, QueueName, number
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.values import format_instant
from queue_over_sql.queues.json_lines import message_fields

ArchiveOption = Annotated[
    bool, typer.Option("--archive", help="Look at finished messages, in the archive.")
]
LimitOption = Annotated[int, number("At most this many.", "--limit", "-n")]
AfterOption = Annotated[
    int | None, typer.Option(metavar="ID", help="Only messages after this id: the next page.")
]


commands = Commands(MESSAGES_PANEL)


@commands.add("peek")
def peek(
    session: Session,
    *,
    queue: QueueName,
    status: AnyStatus = None,
    key: KeyFilter = None,
    kind: KindFilter = None,
    archive: ArchiveOption = False,
    limit: LimitOption = 20,
    after: AfterOption = None,
) -> None:
    """Look at messages without claiming them, by id; exit code 3 when there is none."""
    with session.queue(queue) as looked_at:
        selection = _selection(looked_at, Filters(status, key, kind), archive=archive)
        found = selection.list(limit=limit, after=after)
        _show(session, looked_at, found, archive=archive)


@commands.add("search")
def search(
    session: Session,
    *,
    queue: QueueName,
    status: AnyStatus = None,
    key: KeyFilter = None,
    kind: KindFilter = None,
    payload: PayloadFilter = None,
    where: WhereFilter = None,
    archive: ArchiveOption = False,
    count: Annotated[
        bool, typer.Option("--count", help="Only say how many there are, of all pages.")
    ] = False,
    limit: LimitOption = 20,
    after: AfterOption = None,
) -> None:
    """Find messages by fields of their payload or any SQL condition; claims none, as peek.

    All filters must match. Exit code 3 when there is none.

    Example: queue-over-sql search orders --payload address.city=Zagreb --where 'attempt_count > 2'
    """
    filters = Filters(status, key, kind, payload, where)
    with filters.queue(session, queue) as searched:
        selection = _selection(searched, filters, archive=archive)
        if count:
            number = selection.count()
            session.output.record({"queue": queue, "count": number}, human=str(number))
            raise typer.Exit(ExitCode.OK if number else ExitCode.NOTHING)
        found = selection.list(limit=limit, after=after)
        _show(session, searched, found, archive=archive)


def _selection(queue: Queue, filters: Filters, *, archive: bool) -> Selection:
    return filters.archived(queue) if archive else filters.live(queue)


def _show(session: Session, queue: Queue, found: Sequence[Message], *, archive: bool) -> None:
    when = ("outcome", "finished (UTC)") if archive else ("due (UTC)",)
    # Empty columns would take room from the payload.
    kind = ("kind",) if any(message.kind for message in found) else ()
    error = ("…last error",) if any(message.last_error for message in found) else ()
    session.output.listing(
        found,
        message_fields,
        ("#id", "#prio", "#tried", *when, "key", *kind, "…payload", *error),
        lambda message: (
            message.id,
            message.priority,
            f"{message.attempt}/{message.max_attempts}",
            *_when(message, archive=archive),
            message.key or "",
            *(message.kind or "" for _ in kind),
            _one_line(payload_line(message, queue.settings.payload)),
            *(_one_line(message.last_error or "") for _ in error),
        ),
        nothing=f"No such message in {'the archive of ' * archive}queue {queue.name}.",
    )


def _when(message: Message, *, archive: bool) -> tuple[Any, ...]:
    if archive:
        return message.outcome, format_instant(message.finished_at)
    if message.consumer_id is not None:
        return ("claimed",)
    return (format_instant(message.available_at) or "held",)


def _one_line(text: str) -> str:
    return " ".join(text.split())
