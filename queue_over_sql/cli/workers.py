"""Commands that stay: `worker` runs a Worker of yours, `reaper` is the background daemon."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from queue_over_sql import Worker
from queue_over_sql.cli.options import (
    RUNNING_PANEL,
    ConsumerTimeoutOption,
    argument,
    duration,
    number,
)
from queue_over_sql.cli.output import LAYOUT, printable
from queue_over_sql.cli.session import URL_VARIABLE, Commands, Session
from queue_over_sql.cli.signals import stop_on_signals
from queue_over_sql.cli.values import import_object
from queue_over_sql.cli.worker_processes import SUPERVISED, obey_supervisor, supervise
from queue_over_sql.dialects.engines import hide_passwords

LogLevelOption = Annotated[
    str,
    typer.Option(metavar="debug|info|warning|error", help="How much is logged to standard error."),
]
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
logger = logging.getLogger(__name__)


commands = Commands(RUNNING_PANEL)


@commands.add("worker")
def worker(
    session: Session,
    *,
    target: Annotated[
        str,
        argument(
            "MODULE:WORKER",
            "Import path of the Worker object, e.g. myapp.jobs:worker. The current folder is "
            "importable. Without a colon the object is named worker.",
        ),
    ],
    processes: Annotated[int, number("Number of processes that run the Worker.")] = 1,
    log_level: LogLevelOption = "info",
    supervised: Annotated[
        bool, typer.Option(SUPERVISED, hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Run your Worker until SIGTERM or Ctrl-C.

    It then finishes the messages that it is handling and gives the others back. A second signal
    stops at once. The Worker brings its own database; --url, where given, is put into
    QUEUE_OVER_SQL_URL before your module is imported.

    With --processes, a process that dies is started again after half a second; the pause doubles
    up to 30 s. Its messages come back when its heartbeat ends. Signals are passed on. If this
    process itself is killed, the others finish what they are handling and stop.
    """
    several = processes > 1
    start_logging(log_level, show_process=several or supervised)
    if session.connection.url is not None:
        os.environ[URL_VARIABLE] = session.connection.url
    if several:
        raise typer.Exit(supervise(["worker", target, "--log-level", log_level], processes))
    found = load_worker(target)
    if supervised:
        obey_supervisor(found)
    logger.info("Worker %s runs in process %s.", target, os.getpid())
    found.run(signals=True)
    logger.info("Worker %s has stopped.", target)


def load_worker(target: str) -> Worker:
    """The Worker at ``module:name``; a usage error says what is there instead."""
    try:
        found = import_object(target, "worker")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not isinstance(found, Worker):
        raise typer.BadParameter(
            f"{target} is a {type(found).__name__}, not a Worker (make one by service.worker())"
        )
    return found


@commands.add("reaper")
def reaper(
    session: Session,
    *,
    interval: Annotated[float, duration("Time between two looks.", show_default="1s")] = 1.0,
    consumer_timeout: ConsumerTimeoutOption = 30.0,
    log_level: LogLevelOption = "info",
) -> None:
    """Run the reaper as a daemon until SIGTERM or Ctrl-C.

    It gives back the messages of expired leases and of dead consumers, ends those that are out of
    attempts, prunes archives, and publishes the messages of schedules. Every started service does
    the same: the daemon is for deployments whose consumers come and go. Any number may run.
    """
    start_logging(log_level)
    service = session.service(
        consumer_name="reaper", consumer_timeout=consumer_timeout, reaper_interval=interval
    )
    with stop_on_signals(at_once=True) as stop, service:
        logger.info("The reaper runs in process %s, every %g s.", os.getpid(), interval)
        stop.asked.wait()
        logger.info("The reaper stops.")


class LogFormatter(logging.Formatter):
    """Shows no password of a URL, and writes out what a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        """The finished line, and below it the traceback if there is one."""
        return printable(hide_passwords(super().format(record)), keep=LAYOUT)


def start_logging(level: str, *, show_process: bool = False) -> None:
    """Log to standard error from `level` on; a usage error for a level that is none."""
    if level.lower() not in LEVELS:
        raise typer.BadParameter(f"{level!r} is none of {', '.join(LEVELS)}")
    handler = logging.StreamHandler()
    process = "%(process)d " if show_process else ""
    form = f"%(asctime)s {process}%(levelname)-7s %(name)s  %(message)s"
    handler.setFormatter(LogFormatter(form))
    logging.basicConfig(level=LEVELS[level.lower()], handlers=[handler], force=True)
    # Its line per job and run says nothing that ours do not.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
