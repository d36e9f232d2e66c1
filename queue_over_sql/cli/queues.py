"""Commands that make, list and manage queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from queue_over_sql import Queue
from queue_over_sql.cli.columns import COLUMN_HELP, parse_column
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.options import (
    QUEUES_PANEL,
    LeaseOption,
    MaxAttemptsOption,
    PrioritiesOption,
    QueueName,
    RetryOption,
    YesOption,
    confirm,
)
from queue_over_sql.cli.retention import (
    ArchiveLimitOption,
    ArchiveTtlOption,
    DedupWindowOption,
    KindTimeoutOption,
    parse_limit,
    parse_ttl,
    parse_window,
    rare_settings,
)
from queue_over_sql.cli.retries import named_by_path, parse_retry
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import counted, format_duration

LIST_COLUMNS = ("queue", "payload", "#lease", "#attempts", "#priorities", "archive", "…retry")


def register(app: typer.Typer) -> None:
    """Add this module's commands to `app`."""
    command(app, "create", panel=QUEUES_PANEL)(create)
    command(app, "list", panel=QUEUES_PANEL)(list_queues)
    command(app, "pause", panel=QUEUES_PANEL)(pause)
    command(app, "resume", panel=QUEUES_PANEL)(resume)
    command(app, "purge", panel=QUEUES_PANEL)(purge)
    command(app, "drop", panel=QUEUES_PANEL)(drop)


def create(
    session: Session,
    *,
    queue: QueueName,
    lease: LeaseOption = None,
    max_attempts: MaxAttemptsOption = None,
    retry: RetryOption = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload",
            metavar="json|text|bytes",
            show_default="json for a new queue",
            help="What messages carry; cannot change later.",
        ),
    ] = None,
    priorities: PrioritiesOption = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="none|failed|all",
            show_default="failed for a new queue",
            help="Which finished messages are kept.",
        ),
    ] = None,
    archive_ttl: ArchiveTtlOption = None,
    archive_limit: ArchiveLimitOption = None,
    dedup_window: DedupWindowOption = None,
    kind_timeout: KindTimeoutOption = None,
    max_payload_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-payload-bytes",
            metavar="N",
            min=1,
            show_default="1048576 for a new queue",
            help="Size limit of a payload.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME:TYPE", help=COLUMN_HELP)
    ] = None,
) -> None:
    """Create a queue, or change the settings of one that is there.

    Safe to run from every server at every start. Settings that are not given keep their values, or
    get the defaults in a new queue.
    """
    policy = None if retry is None else parse_retry(retry)
    settings: dict[str, Any] = {
        "lease": lease,
        "max_attempts": max_attempts,
        "retry": policy,
        "payload": payload,
        "priorities": priorities,
        "archive": archive,
        "kind_timeout": kind_timeout,
        "max_payload_bytes": max_payload_bytes,
        "columns": [parse_column(spec) for spec in column] if column else None,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    # None is a value of these: for ever, any number, not at all.
    if archive_ttl:
        settings["archive_ttl"] = parse_ttl(archive_ttl)
    if archive_limit:
        settings["archive_limit"] = parse_limit(archive_limit)
    if dedup_window is not None:
        settings["dedup_window"] = parse_window(dedup_window)
    with session.connect(creates=True, retry_policies=named_by_path(policy)) as service:
        made = service.create_queue(queue, **settings)
        session.output.record(
            {"queue": made.name, **describe(made)}, human=f"Queue {made.name} is ready."
        )


def describe(queue: Queue) -> dict[str, Any]:
    """The settings of `queue` as JSON-ready values."""
    settings = queue.settings
    return {
        "payload": settings.payload,
        "lease": settings.lease,
        "max_attempts": settings.max_attempts,
        "retry": str(settings.retry),
        "priorities": settings.priorities,
        "archive": settings.archive,
        "archive_ttl": settings.archive_ttl,
        "archive_limit": settings.archive_limit,
        "dedup_window": settings.dedup_window,
        "kind_timeout": settings.kind_timeout,
        "max_payload_bytes": settings.max_payload_bytes,
        "columns": [column.name for column in settings.columns],
    }


def list_queues(
    session: Session,
    *,
    temporary: Annotated[
        bool,
        typer.Option(
            "--temporary", help="Also those for the replies to requests, which come and go."
        ),
    ] = False,
) -> None:
    """List the queues of the database with their settings; exit code 3 when there is none."""
    with session.connect() as service:
        queues = service.queues(temporary=temporary)
        if session.output.machine:
            for queue in queues:
                state = {"paused": queue.stats().paused, "temporary": queue.temporary}
                session.output.record({"queue": queue.name, **describe(queue), **state})
        elif queues:
            _show(session, queues)
    if not queues:
        session.output.note("There is no queue yet: queue-over-sql create NAME makes one.")
        raise typer.Exit(ExitCode.NOTHING)


def _show(session: Session, queues: list[Queue]) -> None:
    # An empty column would only take room.
    rare = any(rare_settings(queue.settings) for queue in queues)
    columns = (*LIST_COLUMNS, *(("…also",) if rare else ()), "")
    session.output.table(None, columns, [_listed(queue, rare=rare) for queue in queues])


def _listed(queue: Queue, *, rare: bool) -> tuple[object, ...]:
    settings = queue.settings
    return (
        queue.name,
        settings.payload,
        format_duration(settings.lease.total_seconds()),
        settings.max_attempts,
        settings.priorities,
        settings.archive,
        type(settings.retry).__name__,
        *((rare_settings(settings),) if rare else ()),
        _state(queue),
    )


def _state(queue: Queue) -> Text | str:
    if queue.stats().paused:
        return Text("paused", style="yellow")
    return "temporary" if queue.temporary else ""


def pause(session: Session, *, queue: QueueName) -> None:
    """Stop handing out messages of a queue, on every server; publishing goes on."""
    with session.queue(queue) as paused:
        paused.pause()
    session.output.record({"queue": queue, "paused": True}, human=f"Queue {queue} is paused.")


def resume(session: Session, *, queue: QueueName) -> None:
    """Hand out messages of a paused queue again."""
    with session.queue(queue) as resumed:
        resumed.resume()
    session.output.record({"queue": queue, "paused": False}, human=f"Queue {queue} goes on.")


def purge(
    session: Session,
    *,
    queue: QueueName,
    claimed: Annotated[
        bool,
        typer.Option("--claimed", help="Also remove messages that somebody holds at this moment."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Remove the messages of a queue: ready, delayed and held ones. The archive stays."""
    with session.queue(queue) as purged:
        confirm(f"Remove the messages of queue {queue} for ever?", yes=yes)
        count = purged.purge(claimed=claimed)
    session.output.record(
        {"queue": queue, "removed": count},
        human=f"Removed {counted(count, 'message')} of queue {queue}.",
    )


def drop(session: Session, *, queue: QueueName, yes: YesOption = False) -> None:
    """Drop a queue: its messages, its archive and its settings."""
    with session.connect() as service:
        service.queue(queue)
        confirm(f"Drop queue {queue} with its messages and its archive for ever?", yes=yes)
        dropped = service.drop_queue(queue)
    session.output.record({"queue": queue, "dropped": dropped}, human=f"Queue {queue} is dropped.")
