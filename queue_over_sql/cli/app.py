"""The command itself: its groups, its global options and `main`."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from queue_over_sql import __version__
from queue_over_sql.cli import (
    archive,
    consume,
    consumers,
    database,
    edit,
    groups,
    health,
    publish,
    queues,
    schedules,
    search,
    spark_files,
    spark_process,
    spark_workers,
    sql,
    stats,
    topics,
    web,
    workers,
)
from queue_over_sql.cli.session import (
    Commands,
    DatabaseOptions,
    JsonOption,
    PrefixOption,
    SchemaOption,
    UrlOption,
    unwrapped,
)
from queue_over_sql.cli.spark import PANEL
from queue_over_sql_demo import command as demo

COMMANDS = (
    queues.commands,
    publish.commands,
    consume.commands,
    search.commands,
    edit.commands,
    topics.subscriptions,
    stats.commands,
    groups.commands,
    consumers.commands,
    health.commands,
    sql.commands,
    workers.commands,
    web.serve_commands,
    demo.commands,
    archive.commands,
    groups.group_commands,
    database.commands,
    schedules.commands,
    topics.commands,
    consumers.durable_commands,
    database.sql_api_commands,
    database.role_commands,
    web.token_commands,
)
SPARK_COMMANDS = (
    spark_files.commands,
    spark_process.commands,
    spark_workers.commands,
    spark_files.history_commands,
)
SPARK_HELP = "Move large numbers of messages by Apache Spark: load, work, export, report."
HELP = """Message queues inside the SQL database that you already run.

Name the database with --url or QUEUE_OVER_SQL_URL. Every command that uses a database takes --url,
--schema, --table-prefix and --json before or after its name.

Printed tables and texts show control characters as text, such as \\x1b. JSON escapes them.

Durations are in seconds, or have units: 250ms, 90s, 1h30m, 7d.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 nothing found, 4 database unreachable, 5
finished, but a part of it failed.
"""


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"queue-over-sql {__version__}")
        raise typer.Exit


def _globals(
    context: typer.Context,
    *,
    url: UrlOption = None,
    schema: SchemaOption = None,
    table_prefix: PrefixOption = None,
    as_json: JsonOption = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del version
    context.obj = DatabaseOptions(url, schema, table_prefix, as_json)


def build_app() -> typer.Typer:
    """The Typer application with all commands."""
    app = typer.Typer(
        name="queue-over-sql",
        help=unwrapped(HELP),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_globals)
    spark = Commands(PANEL, "spark", help=SPARK_HELP)
    for commands in SPARK_COMMANDS:
        spark.add_typer(commands)
    for commands in (*COMMANDS, spark):
        app.add_typer(commands, rich_help_panel=commands.group_panel)
    return app


def _occupy_closed_streams() -> None:
    """Occupy the numbers of closed standard streams, so that no file or connection gets one."""
    for stream in (sys.stdin, sys.stdout):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process lasts


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Write characters as in JSON, so that a line of JSON stays one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2)), error.end


def _accept_all_characters() -> None:
    """Escape what a terminal cannot show; a pipe or a file of plain ASCII gets UTF-8."""
    codecs.register_error("queue_over_sql.escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        encoding = codecs.lookup(stream.encoding).name
        if encoding == "ascii" and not stream.isatty():
            stream.reconfigure(encoding="utf-8", errors="strict")
        elif encoding != "utf-8":
            stream.reconfigure(errors="queue_over_sql.escape")


def main() -> None:
    """Run the command with the arguments of this process; the console script's entry point."""
    _occupy_closed_streams()
    _accept_all_characters()
    try:
        build_app()(prog_name="queue-over-sql")
    except SystemExit as end:
        if end.code:
            _forget_unwritten()
        raise


def _forget_unwritten() -> None:
    """Keep the interpreter from reporting failed output again, or changing the exit code for it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
