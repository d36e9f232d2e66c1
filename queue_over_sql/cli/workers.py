"""The commands `worker` and `reaper`, which run until they are stopped."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from queue_over_sql.cli.logs import LogFormatOption, LogLevelOption, start_logging
from queue_over_sql.cli.options import (
    RUNNING_PANEL,
    ConsumerTimeoutOption,
    argument,
    duration,
    number,
)
from queue_over_sql.cli.probes import (
    HttpOption,
    SupervisorHealth,
    has_prometheus,
    metrics_together,
    probing,
)
from queue_over_sql.cli.session import URL_VARIABLE, Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode, stop_on_signals
from queue_over_sql.cli.values import import_object
from queue_over_sql.values.durations import duration_text

if TYPE_CHECKING:
    from queue_over_sql import Worker


logger = logging.getLogger(__name__)

SUPERVISED = "--supervised"
"""The hidden option of workers that a supervisor started."""
# Wrong usage, or no such queue: another process would end in the same way.
_HOPELESS = (ExitCode.USAGE, ExitCode.NOTHING)


commands = Commands(RUNNING_PANEL)


@commands.add("worker")
def worker(
    session: CommandSession,
    *,
    target: Annotated[
        str,
        argument(
            "MODULE:WORKER",
            "Import path of the Worker object, or of a function without parameters that makes it, "
            "e.g. myapp.jobs:worker. The current folder is importable. Without a colon the name is "
            "worker.",
        ),
    ],
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            show_default=False,
            help="Run only the handlers of these queues, separated by commas.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        number("Number of threads in each process.", show_default="the setting of the Worker"),
    ] = None,
    processes: Annotated[int, number("Number of processes that run the Worker.")] = 1,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: start again when a Python file below the current folder "
            "changes.",
        ),
    ] = False,
    until_empty: Annotated[
        bool,
        typer.Option(
            "--until-empty",
            help="Exit when no handler has a due message that may start now, for cron jobs.",
        ),
    ] = False,
    http: HttpOption = None,
    hung_after: Annotated[
        float | None,
        duration(
            "/livez fails if every thread is in a handler call that has run for longer than this.",
            show_default="no limit",
        ),
    ] = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    supervised: Annotated[
        bool, typer.Option(SUPERVISED, hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Run your Worker until SIGTERM or Ctrl-C.

    The Worker then finishes its current messages and releases the others. A second signal stops it
    immediately. Your module decides which database the Worker uses; --url only sets
    QUEUE_OVER_SQL_URL before your module is imported.

    With --processes, a process that dies is restarted after 0.5 s. If it dies again soon, the pause
    doubles, up to 30 s. The messages of a dead process are redelivered when its heartbeat expires.
    The command passes signals on to all processes. If the command itself is killed, the processes
    finish their current messages and stop.

    With --reload, an error in your module does not end the command. The command imports your module
    again when a file changes.

    With --http the command answers health probes, at one address for all processes. The Worker is
    live while its threads make progress, even if the database is unreachable. The Worker is ready
    if the database answers, its heartbeat is recent and it is not stopping. The command also
    reports "live" and "ready" to systemd.
    """
    from queue_over_sql.inside.workers import narrow, obey_supervisor, stop_at_once, unblock_signals
    from queue_over_sql.observability import Health

    if reload and until_empty:
        raise typer.BadParameter("use either --reload or --until-empty, not both")
    if supervised:
        unblock_signals()
    several = processes > 1 or reload
    start_logging(log_level, log_format, show_process=several or supervised)
    if session.connection.url is not None:
        os.environ[URL_VARIABLE] = session.connection.url
    if several:
        arguments = ["worker", target, "--log-level", log_level, "--log-format", log_format]
        arguments += [] if hung_after is None else ["--hung-after", f"{hung_after:f}s"]
        arguments += [] if queues is None else ["--queues", queues]
        arguments += [] if concurrency is None else ["--concurrency", str(concurrency)]
        arguments += ["--until-empty"] if until_empty else []
        raise typer.Exit(_supervise(arguments, processes, http=http, reload=reload))
    found = load_worker(target)
    named = [name.strip() for name in queues.split(",")] if queues is not None else ()
    try:
        narrow(found, named, concurrency)
    except ValueError as error:
        raise typer.BadParameter(f"{target}: {error}") from error
    health = Health(found, hung_after=hung_after)
    if supervised:
        obey_supervisor(
            found.stop,
            lambda: stop_at_once(found),
            lambda: (health.live().checks, health.ready().checks),
        )
    logger.info("Worker %s runs in process %s.", target, os.getpid())
    with contextlib.nullcontext() if supervised else probing(health, http):
        found.run(signals=True, until_empty=until_empty)
    logger.info("Worker %s has stopped.", target)


def load_worker(target: str) -> Worker:
    """Import the Worker at ``module:name``, or call the function there that makes it.

    A usage error says what it is instead.
    """
    from queue_over_sql import Worker

    try:
        found = import_object(target, "worker")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="MODULE:WORKER") from error
    if inspect.isfunction(found):
        if needed := _needed_by(found):
            raise typer.BadParameter(
                f"{target} is a function that needs {needed}: give one without parameters that "
                "returns the Worker",
                param_hint="MODULE:WORKER",
            )
        found = found()
    if not isinstance(found, Worker):
        name = type(found).__name__
        advice = (
            "run it in a program of yours: asyncio.run(worker.run(signals=True))"
            if name == "AsyncWorker"
            else "create one with service.worker()"
        )
        raise typer.BadParameter(
            f"{target} is of type {name}, not Worker: {advice}", param_hint="MODULE:WORKER"
        )
    return found


def _needed_by(function: Callable[..., object]) -> str:
    """The names of the parameters that have no default."""
    return ", ".join(
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    )


@commands.add("reaper")
def reaper(
    session: CommandSession,
    *,
    interval: Annotated[float, duration("Time between two passes.", show_default="1s")] = 1.0,
    consumer_timeout: ConsumerTimeoutOption = 30.0,
    http: HttpOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
) -> None:
    """Run the reaper as a daemon until SIGTERM or Ctrl-C.

    The reaper releases the messages of expired leases and dead consumers, dead-letters messages
    that are out of attempts, prunes archives, and publishes the messages of schedules. Every
    started service also runs a reaper. Use the daemon if none of your services runs all the time.
    You can run several reapers at the same time.
    """
    from queue_over_sql.observability import Health

    start_logging(log_level, log_format)
    observer = None
    if http is not None and has_prometheus():
        from queue_over_sql.observability.prometheus import PrometheusObserver

        observer = PrometheusObserver()
    service = session.service(
        consumer_name="reaper",
        consumer_timeout=consumer_timeout,
        reaper_interval=interval,
        observer=observer,
    )
    with stop_on_signals(at_once=True) as stop, service, probing(Health(service), http):
        every = duration_text(interval)
        logger.info("The reaper runs in process %s, every %s.", os.getpid(), every)
        stop.requested.wait()
        logger.info("The reaper is stopping.")


def _supervise(
    arguments: Sequence[str], count: int, *, http: str | None = None, reload: bool = False
) -> int:
    from queue_over_sql.inside.workers import SourceFiles, Supervisor

    supervisor = Supervisor(
        [sys.executable, "-m", "queue_over_sql", *arguments, SUPERVISED],
        count,
        sources=SourceFiles() if reload else None,
        hopeless=_HOPELESS,
    )
    together = metrics_together() if http is not None else contextlib.nullcontext()
    with together, stop_on_signals() as stop, probing(SupervisorHealth(supervisor), http):
        return supervisor.run(lambda: 2 if stop.now.is_set() else int(stop.requested.is_set()))
