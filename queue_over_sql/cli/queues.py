"""Commands that create, adopt, list and manage queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql import EffectiveSettings, Outcome
from queue_over_sql.cli.edit import removed_how
from queue_over_sql.cli.operations import add_commands
from queue_over_sql.cli.options import (
    LEASE,
    NO_QUEUE,
    QUEUES_PANEL,
    CreateFileOption,
    QueueName,
    SharedOption,
    YesOption,
    argument,
    confirm,
    duration,
    number,
    sql_condition,
    with_options,
)
from queue_over_sql.cli.output import Output, in_yellow
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.values import (
    COLUMN_HELP,
    RETRY_HELP,
    named_by_path,
    parse_column,
    parse_duration,
    parse_retry,
)
from queue_over_sql.values.durations import exact_duration
from queue_over_sql.values.humanize import counted, format_duration
from queue_over_sql.values.limits import MOST_IN_HAND

if TYPE_CHECKING:
    from rich.text import Text

    from queue_over_sql import AdoptedQueue, Queue, QueueService

UNLIMITED: Final = "unlimited"
DEFAULT_KIND_TIMEOUT: Final = EffectiveSettings().kind_timeout


def _kept_for(text: str) -> float | None:
    return None if text == "forever" else parse_duration(text)


def _window(text: str) -> float | None:
    return None if text == "none" else parse_duration(text)


def _number(text: str, no_limit: str = "none") -> int | None:
    if text == no_limit:
        return None
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor {no_limit}")
    return int(text)


def _text(text: str) -> str | None:
    return None if text == "none" else text


def _yes_or_no(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise typer.BadParameter(f"{text!r} is neither yes nor no")
    return text == "yes"


def _by_outcome(texts: Sequence[str], read: Callable[[str], Any]) -> Any:
    values: dict[str, Any] = {}
    for text in texts:
        outcome, separator, value = text.rpartition("=")
        if separator and outcome not in {*Outcome}:
            raise typer.BadParameter(f"{outcome!r} is not one of {', '.join(Outcome)}")
        if outcome in values:
            which = outcome or "all other outcomes"
            raise typer.BadParameter(
                f"{text!r} is a second value for {which}: give one value for each outcome"
            )
        values[outcome] = read(value)
    plain = values.pop("", None)
    return {**dict.fromkeys(map(str, Outcome), plain), **values} if values else plain


def _setting(
    metavar: str, text: str, *, new: str = "none", read: Callable[[Any], Any] = str
) -> SharedOption:
    """A setting that is given as text.

    Args:
        metavar: what its values look like.
        text: its help.
        new: what a new queue has without it.
        read: converts the text.
    """
    shown = f"{new} for a new queue"
    declared = typer.Option(metavar=metavar, show_default=shown, help=text)
    return SharedOption(str, declared, read=read)


SETTING_OPTIONS: Final[Mapping[str, SharedOption]] = {
    "lease": SharedOption(float, LEASE),
    "max_attempts": SharedOption(
        int, number("Deliveries before a message is dead.", show_default="5 for a new queue")
    ),
    "retry": _setting("POLICY", RETRY_HELP, new="exponential", read=parse_retry),
    "priorities": SharedOption(
        int,
        number(
            "Number of priority levels; 0 is the most urgent.", show_default="1 for a new queue"
        ),
    ),
    "payload": _setting("json|text|bytes", "Payload type; cannot be changed later.", new="json"),
    "archive": _setting(
        "none|failed|all", "Which finished messages the archive keeps.", new="failed"
    ),
    "archive_ttl": SharedOption(
        list[str],
        typer.Option(
            metavar="[OUTCOME=]DURATION|forever",
            show_default="forever for a new queue",
            help="How long the archive keeps messages. A value such as done=1h sets one outcome "
            "(done, failed, rejected or expired). A value such as 7d sets all the others. "
            "Repeatable.",
        ),
        read=lambda texts: _by_outcome(texts, _kept_for),
    ),
    "archive_limit": SharedOption(
        list[str],
        typer.Option(
            metavar="[OUTCOME=]N|unlimited",
            show_default="unlimited for a new queue",
            help="How many messages the archive keeps per outcome. Older messages are removed. "
            "A value such as done=1000 sets one outcome. A value such as 500 sets all the others. "
            "Repeatable.",
        ),
        read=lambda texts: _by_outcome(texts, lambda text: _number(text, UNLIMITED)),
    ),
    "unique": _setting(
        "live|waiting",
        "Which messages keep their key taken: all live ones, or those that wait. Cannot be "
        "changed later.",
        new="live",
    ),
    "dedup_window": _setting(
        "DURATION|none", "How long a key stays taken after its message is finished.", read=_window
    ),
    "expires": _setting(
        "DURATION|none",
        "A message that was not started within this time becomes a dead letter.",
        read=_window,
    ),
    "dead_letter_queue": _setting(
        "QUEUE|none", "Another queue, which gets each dead letter.", read=_text
    ),
    "unused_for": _setting(
        "DURATION|none",
        "Drop the queue and its messages when no consumer has used it for this long.",
        read=_window,
    ),
    "group_limit": _setting(
        "N|none",
        "How many messages of one group are in hand at once; none: no groups.",
        read=_number,
    ),
    "group_order": _setting(
        "fifo|any",
        "Whether messages of one group start in the order in which they were published.",
        new="fifo",
    ),
    "group_rate": _setting(
        "RATE|none",
        "How fast messages of one group may start, as 100/min or 5/s burst 1.",
        read=_text,
    ),
    "group_fair": _setting(
        "yes|no",
        "Whether consumers share between groups; it brings groups with it, in any order.",
        new="no",
        read=_yes_or_no,
    ),
    "block_on_failure": _setting(
        "yes|no",
        "Whether a message that fails for the last time blocks its group until `group unblock`.",
        new="no",
        read=_yes_or_no,
    ),
    "queue_limit": _setting(
        "N|none",
        "How many messages of the queue are in hand at once, over all processes.",
        read=_number,
    ),
    "queue_rate": _setting(
        "RATE|none",
        "How fast messages of the queue may start, over all processes, as 100/min or 5/s burst 1.",
        read=_text,
    ),
    "max_length": _setting(
        "N|none", "How many unfinished messages the queue may have.", read=_number
    ),
    "when_full": _setting(
        "wait|reject|replace",
        "What a publish does when the queue has its largest length, or else when its group, or "
        "the queue, is at its limit: wait, fail, or replace one that waits.",
        new="wait",
    ),
    "kind_timeout": SharedOption(
        float,
        duration(
            "A kind is the name of a payload's type. After this time a message becomes a dead "
            "letter if no consumer knows its kind or if its payload does not fit its kind.",
            show_default="1d for a new queue",
        ),
    ),
    "warn_age": _setting(
        "DURATION|none",
        "The dashboard marks the queue if its oldest ready message has been due for longer.",
        read=_window,
    ),
    "critical_age": _setting("DURATION|none", "The same, and `health` fails.", read=_window),
    "max_payload_bytes": SharedOption(
        int,
        number("Largest payload in bytes.", show_default="1048576 for a new queue"),
    ),
    "columns": SharedOption(
        list[str],
        typer.Option(metavar="NAME:TYPE", help=COLUMN_HELP),
        called="column",
        read=lambda specs: [parse_column(spec) for spec in specs],
    ),
}
"""The settings of a queue, by the names of `create_queue`."""

OF_ADOPTED: Final = (
    *("lease", "max_attempts", "retry", "priorities"),
    *("group_limit", "group_order", "group_rate", "group_fair", "block_on_failure"),
    *("queue_limit", "queue_rate", "warn_age", "critical_age"),
)
"""Those that `adopt_queue` takes."""


def rare_settings(settings: EffectiveSettings) -> str:
    """The settings that differ from the defaults, e.g. ``kept 30d; keys 10m``."""
    window, timeout = settings.dedup_window, settings.kind_timeout
    parts = (
        ("kept ", _in_words(settings.archive_ttl, _duration)),
        ("kept ", _in_words(settings.archive_limit, lambda number: f"newest {number:,}")),
        ("keys ", settings.unique if settings.unique == "waiting" else ""),
        ("keys ", "" if window is None else _duration(window)),
        ("expire ", "" if settings.expires is None else _duration(settings.expires)),
        ("dead to ", settings.dead_letter_queue or ""),
        ("unused ", "" if settings.unused_for is None else _duration(settings.unused_for)),
        ("groups of ", _groups(settings)),
        ("in hand ", "" if settings.queue_limit is None else f"{settings.queue_limit:,}"),
        ("rate ", settings.queue_rate or ""),
        ("up to ", "" if settings.max_length is None else f"{settings.max_length:,}"),
        ("when full ", "" if settings.when_full == "wait" else settings.when_full),
        ("warn after ", "" if settings.warn_age is None else _duration(settings.warn_age)),
        ("critical ", "" if settings.critical_age is None else _duration(settings.critical_age)),
        ("unknown kinds ", "" if timeout == DEFAULT_KIND_TIMEOUT else _duration(timeout)),
    )
    return "; ".join(what + value for what, value in parts if value)


def _groups(settings: EffectiveSettings) -> str:
    order = "" if settings.group_order == "fifo" else ", any order"
    blocks = ", blocked by failures" if settings.blocks_groups else ""
    rate = "" if settings.group_rate is None else f", {settings.group_rate}"
    fair = ", fair" if settings.group_fair else ""
    if settings.group_limit is None:
        return ""
    size = "any size" if settings.group_limit == MOST_IN_HAND else f"{settings.group_limit:,}"
    return f"{size}{order}{fair}{rate}{blocks}"


def _in_words(value: Any, say: Callable[[Any], str]) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{outcome} {say(each)}" for outcome, each in value.items())
    return "" if value is None else say(value)


def _duration(value: timedelta) -> str:
    return exact_duration(value.total_seconds())


LIST_COLUMNS = ("queue", "payload", "#lease", "#attempts", "#priorities", "archive", "…retry")


commands = Commands(QUEUES_PANEL)


@commands.add("create")
@with_options(SETTING_OPTIONS)
def create(
    session: CommandSession,
    *,
    queue: QueueName,
    create_file: CreateFileOption = False,
    **given: Any,
) -> None:
    """Create a queue, or change the settings of an existing one.

    It is safe to run this at every start of each of your programs. Options that you leave out do
    not change an existing queue; a new queue gets their defaults.
    """
    policies = named_by_path(given.get("retry"))
    with session.connect(creates=create_file, retry_policies=policies) as service:
        made = service.create_queue(queue, **given)
        session.output.record(
            {"queue": made.name, **describe(made)}, human=f"Queue {made.name} is ready."
        )


def describe(queue: Queue) -> dict[str, Any]:
    """The settings of `queue` as JSON-ready values."""
    settings = queue.settings
    return {
        **{name: getattr(settings, name) for name in SETTING_OPTIONS},
        "retry": str(settings.retry),
        "columns": [column.name for column in settings.columns],
    }


@commands.add("list")
def list_queues(
    session: CommandSession,
    *,
    temporary: Annotated[
        bool,
        typer.Option("--temporary", help="Also list temporary queues."),
    ] = False,
) -> None:
    """List the queues of the database with their settings. Exit code 3: there is none."""
    with session.connect() as service:
        queues = service.queues(temporary=temporary)
        # An empty column would waste space.
        rare = any(rare_settings(queue.settings) for queue in queues)
        session.output.listing(
            queues,
            lambda queue: _record(service, queue),
            (*LIST_COLUMNS, *(("…also",) if rare else ()), ""),
            lambda queue: _listed(service, queue, rare=rare),
            nothing=NO_QUEUE,
        )


def _is_paused(service: QueueService, queue: Queue) -> bool:
    from queue_over_sql import inside

    return inside.record(service, queue.name).paused


def _record(service: QueueService, queue: Queue) -> dict[str, Any]:
    state = {"paused": _is_paused(service, queue), "temporary": queue.temporary}
    return {"queue": queue.name, **describe(queue), **state}


def _listed(service: QueueService, queue: Queue, *, rare: bool) -> tuple[object, ...]:
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
        _state(service, queue),
    )


def _state(service: QueueService, queue: Queue) -> Text | str:
    if _is_paused(service, queue):
        return in_yellow("paused")
    return "temporary" if queue.temporary else ""


add_commands(commands, QueueName, "pause", "resume")


@commands.add("purge")
def purge(
    session: CommandSession,
    *,
    queue: QueueName,
    claimed: Annotated[
        bool,
        typer.Option("--claimed", help="Also remove messages that consumers have claimed."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Permanently remove the unclaimed messages of a queue. Its archive stays."""
    with session.queue(queue) as purged:
        if not yes:
            stats = purged.stats()
            found = stats.live if claimed else stats.live - stats.claimed
            how = removed_how(purged)
            confirm(f"Remove {counted(found, 'message')} from queue {queue}{how}?", yes=not found)
        count = purged.purge(claimed=claimed)
    session.output.record(
        {"queue": queue, "removed": count},
        human=f"Removed {counted(count, 'message')} from queue {queue}.",
    )


add_commands(commands, QueueName, "drop")


@commands.add("adopt")
@with_options({name: SETTING_OPTIONS[name] for name in OF_ADOPTED})
def adopt(
    session: CommandSession,
    *,
    queue: QueueName,
    table: Annotated[str, argument("TABLE", "The table, as TABLE or SCHEMA.TABLE.")],
    column_prefix: Annotated[
        str,
        typer.Option(
            metavar="PREFIX",
            show_default="no prefix",
            help="Prefix for the names of the added columns. You need one if the table already "
            "has columns of these names.",
        ),
    ] = "",
    group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            show_default="no groups",
            help="The column that names a row's group: text, whole numbers or UUIDs.",
        ),
    ] = None,
    unlogged: Annotated[
        bool,
        typer.Option(
            "--unlogged",
            help="Accept an UNLOGGED table of PostgreSQL, which a crash of the server empties.",
        ),
    ] = False,
    enqueue: Annotated[
        bool, typer.Option("--enqueue", help="Enqueue all rows that were never messages.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            show_default=False,
            help="Enqueue the rows that match this SQL condition and were never messages.",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Turn an existing table into a queue whose messages are the table's rows.

    It adds the columns and indexes of a queue to the table. It never deletes a row. A row becomes a
    message when you enqueue it. It is safe to run this again, for example to enqueue more rows.
    """
    with session.connect(retry_policies=named_by_path(given.get("retry"))) as service:
        adopted = service.adopt_queue(
            queue, table, column_prefix=column_prefix, group=group, unlogged=unlogged, **given
        )
        enqueued, human = {}, f"Queue {adopted.name} uses the table {table}."
        if enqueue or where is not None:
            count = _enqueue(adopted, where, session.output)
            enqueued, human = (
                {"enqueued": count},
                f"{human} Enqueued {counted(count, 'row')}.",
            )
        facts = {"queue": adopted.name, "table": table, **enqueued, **describe(adopted)}
        session.output.record(facts, human=human)


def _enqueue(queue: AdoptedQueue, where: str | None, output: Output) -> int:
    # A colon would begin a parameter.
    condition = sql_condition(where)
    with output.progress() as bar:
        task = bar.add_task("Enqueueing", total=queue.count_new(condition))
        return queue.enqueue(condition, progress=lambda count: bar.update(task, completed=count))
