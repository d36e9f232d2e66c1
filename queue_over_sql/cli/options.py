"""Arguments and options that several commands share, and the messages that filters select."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql import DatabaseRefused, PayloadInvalid
from queue_over_sql.cli.session import CommandSession, queue_names
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.values import (
    parse_duration,
    parse_id,
    parse_instant,
    parse_pairs,
    parse_paths,
)
from queue_over_sql.values.options import PUBLISH_DEFAULTS, names_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

    from queue_over_sql import ArchiveSelection, LiveSelection, Queue
    from queue_over_sql.cli.output import Output

QUEUES_PANEL = "Queues"
MESSAGES_PANEL = "Messages"
SCHEDULES_PANEL = "Schedules"
MONITORING_PANEL = "Looking"
RUNNING_PANEL = "Running"
FILTERS_PANEL = "Which messages"
NO_QUEUE = "There is no queue yet. Create one with: queue-over-sql create NAME"


def argument(metavar: str, text: str, **more: Any) -> Any:
    """An argument without a default that is shown, with `text` as its help."""
    return typer.Argument(metavar=metavar, show_default=False, help=text, **more)


def duration(text: str, *names: str, **more: Any) -> Any:
    """An option that takes a duration, with `text` as its help."""
    return typer.Option(*names, metavar="DURATION", parser=parse_duration, help=text, **more)


def number(text: str, *names: str, **more: Any) -> Any:
    """An option that takes a whole number from 1 on, with `text` as its help."""
    return typer.Option(*names, metavar="N", min=1, help=text, **more)


QueueName = Annotated[str, argument("QUEUE", "Name of the queue.", autocompletion=queue_names)]
OnlyQueue = Annotated[str | None, argument("QUEUE", "Only this queue.", autocompletion=queue_names)]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip confirmation (required without a terminal).")
]
CreateFileOption = Annotated[
    bool,
    typer.Option("--create", help="Create the database file if it does not exist (SQLite, H2)."),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        rich_help_panel=FILTERS_PANEL,
        help="Select all messages (required without filters).",
    ),
]
LEASE: Final = duration(
    "How long a consumer holds a message, unless it extends the lease.", show_default=False
)
LeaseOption = Annotated[float | None, LEASE]
ConsumerTimeoutOption = Annotated[
    float,
    duration(
        "A consumer with no heartbeat for this long is considered dead, and its messages are "
        "redelivered.",
        show_default="30s",
    ),
]


def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class SharedOption:
    """An option of several commands, which `with_options` adds to them.

    Attributes:
        type: of its value.
        declared: how Typer shows and reads it.
        default: its value if it is not given.
        called: its name here, if that differs; a repeatable option has the singular.
        read: converts a given value to what the library takes.
    """

    type: Any
    declared: Any
    default: Any = None
    called: str | None = None
    read: Callable[[Any], Any] = _same


def _read(option: SharedOption, called: str, value: Any) -> Any:
    try:
        return option.read(value)
    except typer.BadParameter as error:
        error.param_hint = f"--{called.replace('_', '-')}"
        raise


def with_options(
    options: Mapping[str, SharedOption],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options in place of its ``**given``, which has those that were given."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        found = inspect.signature(function, eval_str=True)
        *own, _ = found.parameters.values()
        called = {name: option.called or name for name, option in options.items()}
        more = [
            inspect.Parameter(
                called[name],
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=Annotated[option.type | None, option.declared],
            )
            for name, option in options.items()
        ]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            given = {name: values.pop(called[name]) for name in options}
            read = {
                name: _read(options[name], called[name], value)
                for name, value in given.items()
                if value is not None and value != []
            }
            function(**values, **read)

        made: Any = run
        made.__signature__ = found.replace(parameters=[*own, *more])
        return run

    return decorate


OnConflictOption = Annotated[
    str,
    typer.Option(
        "--on-conflict",
        metavar="raise|skip|replace",
        help="If a live message has the key: fail, keep that message, or replace its content.",
    ),
]
MESSAGE_OPTIONS: Final[Mapping[str, SharedOption]] = {
    "key": SharedOption(
        str,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Key of the message. A queue has at most one live message with a key.",
        ),
    ),
    "kind": SharedOption(
        str, typer.Option("--kind", metavar="KIND", help="Name of the payload's type.")
    ),
    "group": SharedOption(
        str,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Group of the message, if the queue has groups. Messages of a group keep their "
            "order.",
        ),
    ),
    "headers": SharedOption(
        list[str],
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeatable."),
        called="header",
        read=lambda pairs: parse_pairs(pairs, "--header"),
    ),
    "priority": SharedOption(
        int,
        typer.Option("--priority", metavar="N", min=0, help="0 is the most urgent."),
        default=PUBLISH_DEFAULTS["priority"],
    ),
    "delay": SharedOption(float, duration("Deliver after this delay.", show_default=False)),
    "at": SharedOption(
        datetime,
        typer.Option(
            "--at",
            metavar="INSTANT",
            parser=parse_instant,
            show_default=False,
            help="Deliver at this time: ISO 8601 with an offset.",
        ),
    ),
    "max_attempts": SharedOption(
        int,
        typer.Option(
            "--max-attempts", metavar="N", min=1, help="Deliveries before a message is dead."
        ),
    ),
    "lease": SharedOption(float, LEASE),
    "expires": SharedOption(
        float,
        duration("End the message if it was not started within this time.", show_default=False),
    ),
    "columns": SharedOption(
        list[str],
        typer.Option(
            "--column",
            metavar="NAME=VALUE",
            help="A value for one of the queue's own columns; repeatable.",
        ),
        called="column",
        read=lambda pairs: parse_pairs(pairs, "--column"),
    ),
}
"""The options of a message, by the names of `Publication`."""


def message_options(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a message that a verb of the library takes."""
    return with_options({name: MESSAGE_OPTIONS[name] for name in names_of(options)})


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless `yes`; a no ends the command with exit code 1."""
    if yes:
        return
    # Not typer.confirm, which writes a space to standard output, where only results belong.
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline() if sys.stdin else ""
    if not (answer and sys.stdin.isatty()):
        sys.stderr.write("\n")
    if answer.strip().lower() not in {"y", "yes"}:
        hint = "" if answer else " There was no answer. Add --yes to skip the question."
        sys.stderr.write(f"Aborted.{hint}\n")
        raise typer.Exit(ExitCode.FAILED)


PAYLOAD_HELP: Final = (
    "Only messages with this field in their JSON payload, e.g. address.city=Zagreb or items.0.id=7 "
    "(positions in a list count from 0). VALUE is read as JSON if it is valid JSON, else as text. "
    "So items.0.id=7 is a number; for the text 7 write items.0.id='\"7\"'. Repeatable: all must "
    "match."
)
WHERE_HELP: Final = (
    "Only messages that match this SQL condition on the columns of the queue's table (id, "
    "message_key, kind, payload, priority, attempt_count, last_error, … and your own). The "
    "condition becomes part of the statement unchanged: write it in your database's SQL."
)


def _filter(metavar: str, text: str) -> Any:
    return typer.Option(
        metavar=metavar, show_default=False, rich_help_panel=FILTERS_PANEL, help=text
    )


LIVE_STATUS: Final = "Only messages of this status: ready, delayed, claimed or held."
ARCHIVE_STATUS: Final = "Only messages with this outcome: done, failed, rejected or expired."
ANY_STATUS: Final = (
    "Only messages of this status: ready, delayed, claimed or held; with --archive: done, failed, "
    "rejected or expired."
)
IdArgument = Annotated[int, argument("ID", "Id of the message, live or archived.", parser=parse_id)]
IdFilter = Annotated[
    list[int] | None, argument("ID...", "Only the messages with these ids.", parser=parse_id)
]
FILTERS: Final[Mapping[str, SharedOption]] = {
    "key": SharedOption(str, _filter("KEY", "Only messages with this key.")),
    "kind": SharedOption(str, _filter("KIND", "Only messages of this kind.")),
    "group": SharedOption(str, _filter("GROUP", "Only messages of this group.")),
    "payload": SharedOption(list[str], _filter("PATH=VALUE", PAYLOAD_HELP)),
    "where": SharedOption(str, _filter("SQL", WHERE_HELP)),
}
"""The filters of messages, by the names of `Queue.messages`."""


ERROR_FILTER: Final = SharedOption(
    str,
    _filter("FINGERPRINT", "Only dead letters with this error; `queue-over-sql dead` lists them."),
)


def with_filters(status: str, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the filters with these names (none: all), and ``--status`` with this help."""
    chosen = {name: FILTERS[name] for name in names or FILTERS}
    if status == ARCHIVE_STATUS:
        chosen["error"] = ERROR_FILTER
    return with_options({"status": SharedOption(str, _filter("STATUS", status)), **chosen})


@dataclasses.dataclass(frozen=True)
class Filters:
    """The filters given on the command line; none selects all messages."""

    status: str | None = None
    key: str | None = None
    kind: str | None = None
    group: str | None = None
    payload: Sequence[str] | None = None
    where: str | None = None
    ids: Sequence[int] | None = None
    error: str | None = None

    @property
    def given(self) -> bool:
        """Whether any filter was given."""
        return any(value not in (None, [], ()) for value in dataclasses.astuple(self))

    def arguments(self) -> dict[str, Any]:
        """The arguments of the library's ``messages`` and ``export``."""
        return {
            "status": self.status,
            "key": self.key,
            "kind": self.kind,
            "group": self.group,
            "payload": parse_fields(self.payload) if self.payload else None,
            "where": sql_condition(self.where),
        }

    @contextmanager
    def queue(self, session: CommandSession, name: str) -> Iterator[Queue]:
        """Open the queue `name`; an error that --where may have caused says so."""
        try:
            with session.queue(name) as queue:
                yield queue
        except (DatabaseRefused, PayloadInvalid) as error:
            if self.where is None:
                raise
            raise DatabaseRefused(
                f"{error} Check --where: it must be SQL for this database, on the columns of the "
                "table."
            ) from error

    def live(self, queue: Queue) -> LiveSelection:
        """The matching messages of `queue`."""
        return queue.messages(**self._arguments(queue.table))

    def archived(self, queue: Queue) -> ArchiveSelection:
        """The matching archived messages of `queue`."""
        return queue.archive.messages(**self.archive_arguments(queue))

    def archive_arguments(self, queue: Queue) -> dict[str, Any]:
        """The arguments of the archive's ``messages`` and ``export``."""
        found = self._arguments(queue.archive.table)
        if self.error is not None:
            from queue_over_sql import inside

            same, where = inside.having_error(queue, self.error, mark=None), found["where"]
            found["where"] = same if where is None else same & where
        return found

    def check_ids(self, output: Output, found: int) -> None:
        """End with exit code 5 if not all messages with the given ids were found."""
        if found < (wanted := len(set(self.ids or ()))):
            output.note(f"{wanted - found} of {wanted} ids did not match.")
            raise typer.Exit(ExitCode.INCOMPLETE)

    def _arguments(self, table: Table) -> dict[str, Any]:
        found = self.arguments()
        if self.ids:
            of_them, where = table.c.id.in_(self.ids), found["where"]
            found["where"] = of_them if where is None else of_them & where
        return found


def sql_condition(where: str | None) -> ColumnElement[Any] | None:
    """The SQL condition as it was typed, or None."""
    from sqlalchemy import literal_column

    # Not text(), for which a colon begins a parameter. The line break ends a comment.
    return None if where is None else literal_column(f"({where}\n)")


def parse_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse the payload fields to filter by; reject a path that was given twice."""
    return parse_paths(pairs, "--payload")
