"""What the commands of `spark` share: the session, options, progress, Spark's errors in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Session
from queue_over_sql.cli.signals import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PANEL: Final = "Spark"

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        rich_help_panel=PANEL,
        show_default="of spark-submit, else all cores of this machine",
        help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://….",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        rich_help_panel=PANEL,
        help="A setting of Spark, such as spark.driver.memory=4g; repeatable.",
    ),
]
QueuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", metavar="QUEUE", show_default="all", help="Only this queue; repeatable."
    ),
]


@contextlib.contextmanager
def spark_session(
    session: Session, master: str | None, conf: Sequence[str] | None
) -> Iterator[SparkSession]:
    """A Spark session for one command, stopped at its end; Spark's errors end with exit code 1.

    What is wrong with an argument is a ``ValueError``, which ends with exit code 2.
    """
    settings = _settings(master, conf or ())
    try:
        from queue_over_sql.spark import session as start
    except ModuleNotFoundError as error:
        session.output.error(f"{error.name} is missing: pip install 'queue-over-sql[spark]'")
        raise typer.Exit(ExitCode.FAILED) from None
    with session.output.progress(total_known=False) as bar:
        bar.add_task("Starting Spark")
        spark = start(**settings)
    try:
        yield spark
    except Exception as error:
        if not _is_of_spark(error):
            raise
        session.output.error(first_words(error))
        raise typer.Exit(ExitCode.FAILED) from error
    finally:
        # Where the JVM has gone already there is nothing left to stop.
        with _without_spark(lambda: True):
            spark.stop()


def ended_by(stop: Stop) -> contextlib.AbstractContextManager[None]:
    """Inside, an error of Spark is the end that was asked for, once the process was asked to stop.

    Service managers and ``timeout`` send their signal to all processes of a command. The JVM has
    then gone before this process could tell it to stop the query, which goes on at its next start.
    """
    return _without_spark(stop.asked.is_set)


@contextlib.contextmanager
def _without_spark(allowed: Callable[[], bool]) -> Iterator[None]:
    """Let it pass that Spark, or the connection to its JVM, is lost, where that is allowed."""
    try:
        yield
    except Exception as error:
        if not (_is_of_spark(error) or isinstance(error, ConnectionError)) or not allowed():
            raise


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


@contextlib.contextmanager
def steps_shown(session: Session, doing: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show what a pipeline does, step by step: a bar on a terminal, else one remark a step."""
    with session.output.progress() as bar:
        task = bar.add_task(doing, total=None)

        def show(what: str, done: int, of_all: int) -> None:
            bar.update(task, description=f"{doing}: {what}", completed=done, total=of_all)
            if done < of_all:
                _tell(session.output, f"{doing}: {what} ({done + 1} of {of_all})")

        yield show


def _tell(output: Output, what: str) -> None:
    """Say what is being done, to a person who sees no progress bar."""
    if not output.err.is_terminal and not output.machine:
        output.note(what)


def first_words(error: BaseException) -> str:
    """The reason in Spark's error without the stack of the JVM below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # An error of a Python worker comes with its traceback; what it says stands in the last line.
    raised = [
        line for line in lines if not line.startswith(("at ", "File ", "Caused by", "Driver"))
    ]
    python = [n for n, line in enumerate(raised) if line.startswith("Traceback")]
    if python:
        told = [line for line in raised[python[-1] :] if ": " in line]
        return told[-1] if told else raised[0]
    return raised[0] if raised else type(error).__name__


def _settings(master: str | None, conf: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {} if master is None else {"spark.master": master}
    for pair in conf:
        name, separator, value = pair.partition("=")
        if not separator or not name.startswith("spark."):
            raise typer.BadParameter(f"{pair!r} is not spark.….=VALUE", param_hint="--conf")
        settings[name] = value
    return settings
