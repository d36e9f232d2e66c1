"""Commands that make, adopt, list and manage queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from queue_over_sql import AdoptedQueue, EffectiveSettings, Outcome, Queue
from queue_over_sql.cli.filters import sql_condition
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
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.values import (
    COLUMN_HELP,
    counted,
    exact_duration,
    format_duration,
    named_by_path,
    parse_column,
    parse_duration,
    parse_retry,
)

FOREVER: Final = "forever"
UNLIMITED: Final = "unlimited"
NONE: Final = "none"
DEFAULT_KIND_TIMEOUT: Final = EffectiveSettings().kind_timeout

ArchiveTtlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archive-ttl",
        metavar="[OUTCOME=]DURATION|forever",
        show_default="forever for a new queue",
        help="How long the archive keeps them; for one outcome (done, failed, rejected, expired) "
        "as in done=1h. Repeatable; outcomes that are not named get the plain value, else forever.",
    ),
]
ArchiveLimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archive-limit",
        metavar="[OUTCOME=]N|unlimited",
        show_default="unlimited for a new queue",
        help="How many of each outcome the archive keeps, the newest; for one outcome as in "
        "done=1000. Repeatable, as --archive-ttl.",
    ),
]
DedupWindowOption = Annotated[
    str | None,
    typer.Option(
        "--dedup-window",
        metavar="DURATION|none",
        show_default="none for a new queue",
        help="How long a key stays taken after its message finished.",
    ),
]
KindTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--kind-timeout",
        metavar="DURATION",
        parser=parse_duration,
        show_default="1d for a new queue",
        help="How long a message of a kind that no server knows, or whose payload does not fit "
        "its kind, waits before it is dead.",
    ),
]


def parse_ttl(texts: Sequence[str]) -> Any:
    """What `--archive-ttl` says: seconds or None, for all outcomes or by outcome."""
    return _by_outcome(
        texts, "--archive-ttl", lambda text: None if text == FOREVER else parse_duration(text)
    )


def parse_limit(texts: Sequence[str]) -> Any:
    """What `--archive-limit` says: a number or None, for all outcomes or by outcome."""
    return _by_outcome(texts, "--archive-limit", _number)


def parse_window(text: str) -> float | None:
    """What `--dedup-window` says: seconds, or None."""
    return None if text == NONE else _read(text, "--dedup-window", parse_duration)


def _number(text: str) -> int | None:
    if text == UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor {UNLIMITED}")
    return int(text)


def _by_outcome(texts: Sequence[str], option: str, read: Callable[[str], Any]) -> Any:
    values: dict[str, Any] = {}
    for text in texts:
        outcome, separator, value = text.rpartition("=")
        if separator and outcome not in {*Outcome}:
            raise typer.BadParameter(
                f"{outcome!r} is none of {', '.join(Outcome)}", param_hint=option
            )
        if outcome in values:
            raise typer.BadParameter(f"{text!r} says it a second time", param_hint=option)
        values[outcome] = _read(value, option, read)
    plain = values.pop("", None)
    return {**dict.fromkeys(map(str, Outcome), plain), **values} if values else plain


def _read(text: str, option: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except typer.BadParameter as error:
        error.param_hint = option
        raise


def rare_settings(settings: EffectiveSettings) -> str:
    """What a queue keeps and waits for, where not as usual, e.g. ``kept 30d; keys 10m``."""
    window, patience = settings.dedup_window, settings.kind_timeout
    parts = (
        ("kept ", _in_words(settings.archive_ttl, _duration)),
        ("kept ", _in_words(settings.archive_limit, lambda number: f"newest {number:,}")),
        ("keys ", "" if window is None else _duration(window)),
        ("unknown kinds ", "" if patience == DEFAULT_KIND_TIMEOUT else _duration(patience)),
    )
    return "; ".join(what + value for what, value in parts if value)


def _in_words(value: Any, say: Callable[[Any], str]) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{outcome} {say(each)}" for outcome, each in value.items())
    return "" if value is None else say(value)


def _duration(value: timedelta) -> str:
    return exact_duration(value.total_seconds())


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


PREFIX_HELP = "What the names of the added columns begin with; needed where the table has such."
ENQUEUE_HELP = "Make messages of all rows that never were."
WHERE_HELP = "Make messages of the rows that never were and match this SQL condition."


def register_adopt(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "adopt", panel=QUEUES_PANEL)(adopt)


def adopt(
    session: Session,
    *,
    queue: QueueName,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", show_default=False, help="The table; its schema before a dot."
        ),
    ],
    column_prefix: Annotated[
        str, typer.Option("--column-prefix", metavar="PREFIX", help=PREFIX_HELP)
    ] = "",
    enqueue: Annotated[bool, typer.Option("--enqueue", help=ENQUEUE_HELP)] = False,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", show_default=False, help=WHERE_HELP),
    ] = None,
    lease: LeaseOption = None,
    max_attempts: MaxAttemptsOption = None,
    retry: RetryOption = None,
    priorities: PrioritiesOption = None,
) -> None:
    """Make a queue of a table of yours, whose rows are the messages.

    Adds the columns and indexes of a queue to the table; no row is deleted, ever. No row is a
    message before it is enqueued. Safe to run again, also to enqueue more rows.
    """
    policy = None if retry is None else parse_retry(retry)
    settings: dict[str, Any] = {
        "lease": lease,
        "max_attempts": max_attempts,
        "retry": policy,
        "priorities": priorities,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    with session.connect(retry_policies=named_by_path(policy)) as service:
        adopted = service.adopt_queue(queue, table, column_prefix=column_prefix, **settings)
        count = None
        if enqueue or where is not None:
            count = _enqueue(adopted, where, session.output)
        enqueued = {} if count is None else {"enqueued": count}
        session.output.record(
            {"queue": adopted.name, "table": table, **enqueued, **describe(adopted)},
            human=_summary(adopted.name, table, count),
        )


def _enqueue(queue: AdoptedQueue, where: str | None, output: Output) -> int:
    # A colon would be the beginning of a parameter.
    condition = sql_condition(where)
    with output.progress() as bar:
        task = bar.add_task("Enqueueing", total=queue.count_new(condition))
        return queue.enqueue(condition, progress=lambda count: bar.update(task, completed=count))


def _summary(queue: str, table: str, count: int | None) -> str:
    ready = f"Queue {queue} lives in the table {table}."
    return ready if count is None else f"{ready} {counted(count, 'row')} became messages."
