"""The options for the database, and the exit codes of errors, for every command."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer
from typer.core import TyperCommand

from queue_over_sql import (
    DuplicateKey,
    QueueError,
    QueueNotFound,
    ScheduleNotFound,
    TopicNotFound,
)
from queue_over_sql.cli.output import Output, insist_on_output
from queue_over_sql.cli.signals import ExitCode, Terminated, exit_code_of, sigterm_raised
from queue_over_sql.errors import did_you_mean, near_names, near_queue_name
from queue_over_sql.values.cached import cached_property

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService


def in_words(error: Exception) -> str:
    """The text of an error, with advice for users of the shell."""
    if isinstance(error, QueueNotFound):
        near = f"{did_you_mean(error.near)}? If not, " if error.near else ""
        return (
            f"There is no queue {error.queue!r} in this database; {near}"
            f"create it with: queue-over-sql create {near_queue_name(error.queue)}"
        )
    if isinstance(error, TopicNotFound):
        name = near_queue_name(error.topic)
        return (
            f"There is no topic {error.topic!r} in this database; "
            f"create it with: queue-over-sql topic create {name}"
        )
    if isinstance(error, ScheduleNotFound):
        return (
            f"There is no schedule {error.schedule!r} in this database; list the schedules with: "
            "queue-over-sql schedule list"
        )
    if isinstance(error, DuplicateKey):
        return re.sub(r"\bon_conflict='(\w+)'", r"--on-conflict \1", str(error))
    return str(error) or type(error).__name__


def _note_near_names(service: QueueService, error: QueueNotFound) -> None:
    from sqlalchemy.exc import SQLAlchemyError  # only here

    # Only advice: whatever stands in the way of the names is not what went wrong.
    with suppress(QueueError, SQLAlchemyError):
        error.near = tuple(near_names(error.queue, [queue.name for queue in service.queues()]))


URL_VARIABLE = "QUEUE_OVER_SQL_URL"
SCHEMA_VARIABLE = "QUEUE_OVER_SQL_SCHEMA"
PREFIX_VARIABLE = "QUEUE_OVER_SQL_TABLE_PREFIX"
DATABASE_PANEL = "Database and output"
NO_URL = f"""no database is given. Set it with --url or {URL_VARIABLE}, e.g.
  --url sqlite:///queues.db
  --url postgresql://user:password@host/database
  --url mysql://user:password@host/database
  --url h2://user:password@host:9092/./database"""

UrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        rich_help_panel=DATABASE_PANEL,
        help=f"SQLAlchemy URL of the database. Default: {URL_VARIABLE}.",
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=DATABASE_PANEL,
        help=f"Database schema of the tables. Default: {SCHEMA_VARIABLE}.",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        rich_help_panel=DATABASE_PANEL,
        help="Prefix of the queues' tables.",
        show_default=f"{PREFIX_VARIABLE}, or queue_ if it is not set",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=DATABASE_PANEL,
        help="Write results as JSON lines to standard output, and everything else to standard "
        "error.",
    ),
]


@dataclass(frozen=True)
class DatabaseOptions:
    """The database options of one part of the command line; None: not given there."""

    url: UrlOption = None
    schema: SchemaOption = None
    table_prefix: PrefixOption = None
    as_json: JsonOption = False

    def over(self, other: DatabaseOptions) -> DatabaseOptions:
        """These options, completed by those of `other`."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return DatabaseOptions(*(mine or theirs for mine, theirs in pairs))


def environment() -> DatabaseOptions:
    """The connection options given by environment variables."""
    url, schema, prefix = (
        os.environ.get(name) or None for name in (URL_VARIABLE, SCHEMA_VARIABLE, PREFIX_VARIABLE)
    )
    return DatabaseOptions(url, schema, prefix)


class Tables(TypedDict, total=False):
    """Schema and prefix of the tables: arguments of `QueueService` and of Spark's functions."""

    schema: str
    table_prefix: str


class CommandSession(typer.Context):
    """One run of a command: its database and its output. Typer hands it to the command."""

    @property
    def given(self) -> DatabaseOptions:
        """The database options of the command line."""
        given: DatabaseOptions = self.obj or DatabaseOptions()
        return given

    @cached_property
    def connection(self) -> DatabaseOptions:
        """The database options of the command line, completed by the environment."""
        return self.given.over(environment())

    @cached_property
    def output(self) -> Output:
        """The output of the command."""
        return Output(machine=self.connection.as_json)

    @property
    def url(self) -> str:
        """The database's URL; a usage error if there is none."""
        if self.connection.url is None:
            raise typer.BadParameter(NO_URL)
        return self.connection.url

    @property
    def tables(self) -> Tables:
        """Schema and prefix of the tables, as far as they were given."""
        said = Tables()
        if self.connection.schema is not None:
            said["schema"] = self.connection.schema
        if self.connection.table_prefix is not None:
            said["table_prefix"] = self.connection.table_prefix
        return said

    def service(
        self, *, creates: bool = False, url: str | None = None, **options: Any
    ) -> QueueService:
        """A service on the given database; `options` go to `QueueService`. Not started.

        The file of an embedded database is created only for a command that `creates`. `url` is of
        another database than that of the command line.
        """
        url = url or self.url
        from queue_over_sql import QueueService
        from queue_over_sql.inside.databases import insist_on_file, read_url

        if not creates:
            insist_on_file(read_url(url))
        return QueueService(url, **self.tables, **options)

    @contextmanager
    def connect(
        self, *, creates: bool = False, url: str | None = None, **options: Any
    ) -> Iterator[QueueService]:
        """A service that is not started (no heartbeat, no reaper), stopped at the end."""
        service = self.service(creates=creates, url=url, **options)
        try:
            yield service
        except QueueNotFound as error:
            if not error.near:
                _note_near_names(service, error)
            raise
        finally:
            service.stop()

    @contextmanager
    def queue(self, name: str) -> Iterator[Queue]:
        """Open the queue `name` on a service of ``connect``."""
        with self.connect() as service:
            yield service.queue(name)


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of queues with this prefix, for completion; none if the database does not answer."""
    at: Any = context
    given = DatabaseOptions()
    while at is not None:
        said = {field.name: at.params.get(field.name) for field in fields(DatabaseOptions)}
        given, at = given.over(DatabaseOptions(**said)), at.parent
    given = given.over(environment())
    # A shell prints everything that a completion writes, in the middle of the line.
    logging.disable()
    try:
        session = CommandSession(context.command, obj=given)
        with session.connect(notify=False, auto_migrate=False) as service:
            return [queue.name for queue in service.queues() if queue.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - whatever it is, nobody can be told
        return []


class _Command(TyperCommand):
    """A command with the database options in addition to its own.

    Errors of the library end the process with their exit code and one message, never a traceback.
    """

    context_class = CommandSession

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params += _database_options()

    def invoke(self, ctx: Any) -> Any:
        session: CommandSession = ctx
        own = DatabaseOptions(
            **{field.name: session.params.pop(field.name) for field in fields(DatabaseOptions)}
        )
        session.obj = own.over(session.given)
        with errors_as_exit_codes(session.output, self._by_options), sigterm_raised():
            insist_on_output()
            return super().invoke(ctx)

    def _by_options(self, text: str) -> str:
        # The library's errors use argument names of Python.
        options = {str(param.name): max(param.opts, key=len) for param in self.params}
        named = {name: given for name, given in options.items() if given.startswith("--")}
        # For repeatable options the library uses plural names.
        named |= {f"{name}s": given for name, given in named.items() if f"{name}s" not in options}
        words = _WORD if text.startswith(_CHOICES) else _ARGUMENT
        return words.sub(lambda found: named.get(found[0], found[0]), text)


# Words with an underscore are always names. Other words are names only at the beginning.
_ARGUMENT = re.compile(r"(?<![\w'\"./-])[a-z]+(?:_[a-z]+)+(?![\w'\"])|\A[a-z]+(?= must |:)")

# "use delay or at, not both" has argument names everywhere.
_CHOICES = ("give ", "use ")
_WORD = re.compile(r"(?<![\w'\"./-])[a-z_]+(?![\w'\"])")


@functools.cache
def _database_options() -> list[Any]:
    declared = typer.Typer(add_completion=False)
    declared.command()(DatabaseOptions)
    return typer.main.get_command(declared).params


class Commands(typer.Typer):
    """Commands of one help panel; with a `name` they are a group.

    Args:
        panel: of the commands.
        name: of the group; None adds the commands to the parent group.
        help: of the group.
        group_panel: of the group; `panel` if it is not given.
    """

    def __init__(
        self,
        panel: str,
        name: str | None = None,
        *,
        help: str | None = None,  # noqa: A002 - as Typer calls it
        group_panel: str | None = None,
    ) -> None:
        super().__init__(name=name, no_args_is_help=True, help=help)
        self.panel = panel
        self.group_panel = group_panel or panel

    def add(
        self,
        name: str,
        help: str | None = None,  # noqa: A002 - as Typer calls it
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register ``function(session, …)`` as a command; its docstring is the help, or `help`."""

        def register(function: Callable[..., None]) -> Callable[..., None]:
            text = unwrapped(help or inspect.getdoc(function) or "")
            return self.command(name, cls=_Command, rich_help_panel=self.panel, help=text)(function)

        return register


def unwrapped(text: str) -> str:
    """`text` with each paragraph on one line, so that the terminal wraps it."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


@contextmanager
def errors_as_exit_codes(output: Output, by_options: Callable[[str], str] = str) -> Iterator[None]:
    """Print a library, database or input error, and end with its exit code.

    Args:
        output: where to print it.
        by_options: replaces argument names of the library in an error's text by options.
    """
    try:
        yield
    except QueueError as error:
        output.error(by_options(in_words(error)))
        raise typer.Exit(exit_code_of(type(error))) from error
    except BrokenPipeError:
        # The reader of our output has closed it, as `head` does: no error, but no more output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(ExitCode.READER_GONE) from None
    except ValueError as error:
        # The library's error for an invalid argument, which came from an option here.
        output.error(by_options(str(error)))
        raise typer.Exit(ExitCode.USAGE) from error
    except _errors_from_outside() as error:
        output.error(str(error) or type(error).__name__)
        raise typer.Exit(ExitCode.FAILED) from error
    except Terminated:
        output.note("Terminated.")
        raise typer.Exit(ExitCode.TERMINATED) from None
    except KeyboardInterrupt:
        output.note("Interrupted.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _errors_from_outside() -> tuple[type[Exception], ...]:
    # Where nobody has imported SQLAlchemy, it has raised nothing.
    sqlalchemy = sys.modules.get("sqlalchemy.exc")
    return (OSError,) if sqlalchemy is None else (OSError, sqlalchemy.SQLAlchemyError)
