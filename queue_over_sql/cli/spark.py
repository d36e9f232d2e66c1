"""Shared by the commands of `spark`: session, options, progress and the user's functions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql import errors
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import CommandSession
from queue_over_sql.cli.signals import ExitCode, Stop, exit_code_of
from queue_over_sql.cli.values import import_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PANEL: Final = "Spark"
# Spark's texts if the format refuses its options before anything was read or written.
_MAKING: Final = ("Failed to create Python data source", "Failed to initialize Python data source")

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        rich_help_panel=PANEL,
        show_default="the master of spark-submit, else all cores of this machine",
        help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://….",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        rich_help_panel=PANEL,
        help="A Spark setting, such as spark.driver.memory=4g. Repeatable.",
    ),
]
QueuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", metavar="QUEUE", show_default="all", help="Only this queue. Repeatable."
    ),
]


@contextlib.contextmanager
def spark_session(
    session: CommandSession, master: str | None, conf: Sequence[str] | None
) -> Iterator[SparkSession]:
    """A Spark session for one command; Spark's errors are shortened.

    A wrong argument is a ``ValueError``, which ends with exit code 2.
    """
    settings = _settings(master, conf or ())
    try:
        from queue_over_sql.spark import session as start
    except ModuleNotFoundError as error:
        # Its text names the extra to install.
        session.output.error(str(error))
        raise typer.Exit(ExitCode.FAILED) from None
    with session.output.progress(total_known=False) as bar:
        bar.add_task("Starting Spark")
        spark = start(**settings)
    try:
        yield spark
    except Exception as error:
        if not _is_of_spark(error):
            raise
        text, code = explained(error)
        session.output.error(text)
        raise typer.Exit(code) from error
    finally:
        # If the JVM has ended, there is nothing to stop.
        with _without_spark(lambda: True):
            spark.stop()


def ended_by(stop: Stop) -> contextlib.AbstractContextManager[None]:
    """Ignore Spark's errors once the process was asked to stop.

    Service managers and ``timeout`` send their signal to all processes of a command, so the JVM may
    end before this process can stop the query. The query continues at its next start.
    """
    return _without_spark(stop.requested.is_set)


@contextlib.contextmanager
def _without_spark(allowed: Callable[[], bool]) -> Iterator[None]:
    def is_shown(record: logging.LogRecord) -> bool:
        # Py4J logs an interrupted command, with its traceback, to the root logger.
        return not (allowed() and "py4j" in record.pathname)

    root = logging.getLogger()
    root.addFilter(is_shown)
    try:
        yield
    except Exception as error:
        if not (_is_of_spark(error) or isinstance(error, ConnectionError)) or not allowed():
            raise
    finally:
        root.removeFilter(is_shown)


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


@contextlib.contextmanager
def steps_shown(session: CommandSession, doing: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the steps of a pipeline: a progress bar on a terminal, otherwise one line per step."""
    with session.output.progress() as bar:
        task = bar.add_task(doing, total=None)

        def show(what: str, done: int, of_all: int) -> None:
            bar.update(task, description=f"{doing}: {what}", completed=done, total=of_all)
            if done < of_all:
                _report(session.output, f"{doing}: {what} ({done + 1} of {of_all})")

        yield show


def _report(output: Output, what: str) -> None:
    if not output.err.is_terminal and not output.machine:
        output.note(what)


def explained(error: BaseException) -> tuple[str, ExitCode]:
    """Print the reason of a Spark error, and end with its exit code.

    An error of this library that was raised in Spark's Python gets its usual exit code.
    """
    from queue_over_sql.spark import in_short, raised_in_python

    raised = raised_in_python(error)
    if raised is None:
        return in_short(error), ExitCode.FAILED
    module, _, name = raised.kind.rpartition(".")
    kind = getattr(errors, name, None) if module == errors.__name__ else None
    if isinstance(kind, type) and issubclass(kind, errors.QueueError):
        return raised.text or name, exit_code_of(kind)
    if raised.kind == "ValueError" and any(words in str(error) for words in _MAKING):
        # The format's error for an invalid option.
        return raised.text, ExitCode.USAGE
    return str(raised), ExitCode.FAILED


def _settings(master: str | None, conf: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {} if master is None else {"spark.master": master}
    for pair in conf:
        name, separator, value = pair.partition("=")
        if not separator or not name.startswith("spark."):
            raise typer.BadParameter(
                f"{pair!r} is not a setting such as spark.driver.memory=4g", param_hint="--conf"
            )
        settings[name] = value
    return settings


def check_function(target: str, default: str, option: str = "MODULE:FUNCTION") -> bool:
    """Refuse other values than functions; returns whether the import needed no session.

    ``@udf("string")``, ``col("id")`` and ``SparkSession.active()`` need a session when the module
    is imported. An error inside the module itself is raised unchanged.
    """
    try:
        load_function(target, default, option)
    except Exception as error:
        if not _raised_by_spark(error):
            raise
        return False
    return True


def load_function(target: str, default: str, option: str = "MODULE:FUNCTION") -> Callable[..., Any]:
    """Import a function, named ``default`` if the path has no name."""
    try:
        found = import_object(target, default)
    except ValueError as error:
        if _raised_by_spark(error):
            raise
        raise typer.BadParameter(str(error), param_hint=option) from error
    if not callable(found):
        text = f"{target} is a {type(found).__name__}, not a function"
        raise typer.BadParameter(text, param_hint=option)
    return found


def _raised_by_spark(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "pyspark"
