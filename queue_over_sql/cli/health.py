"""Commands that check: `health` and `metrics` for monitoring, `doctor` for people."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from queue_over_sql import DatabaseUnavailable
from queue_over_sql.cli.options import MONITORING_PANEL, duration
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode, stop_on_signals
from queue_over_sql.values.humanize import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql.observability import Check

DEFAULT_HTTP = "127.0.0.1:9000"
_END_SECONDS = 1.0

commands = Commands(MONITORING_PANEL)


@commands.add("health")
def health(
    session: CommandSession,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Ask the process at --http whether it is live.")
    ] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Ask the process at --http whether it is ready.")
    ] = False,
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address of the process: the value of its own --http.",
        ),
    ] = DEFAULT_HTTP,
    max_age: Annotated[
        float | None,
        duration(
            "Fail if the oldest ready message of a queue has been due for longer, unless the queue "
            "has a critical age.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, duration("Time limit for the whole command.", show_default="5s")
    ] = 5.0,
) -> None:
    """Check whether the queues are being served. Exit code 0: healthy. Exit code 1: not healthy.

    The command checks that the database answers, the tables exist, a consumer is alive, every queue
    with messages has a consumer, and no work has waited more than a minute for a reaper. It reads a
    few rows by index and changes nothing.

    With --live or --ready the command asks one running process: the dashboard, or a worker or
    reaper that was started with --http. The command then needs no database, and works as a probe in
    images without curl.
    """
    if timeout <= 0:
        raise typer.BadParameter("it must be longer than zero", param_hint="--timeout")
    if live and ready:
        raise typer.BadParameter("use --live or --ready, not both", param_hint="--live")
    if live or ready:
        checks = _ask_process(http, "/livez" if live else "/readyz", timeout)
    else:
        checks = _ask_database(session, max_age, timeout)
    well = all(check.ok for check in checks)
    if session.output.machine:
        found = [dataclasses.asdict(check) for check in checks]
        session.output.record({"ok": well, "checks": found})
    else:
        widest = max(len(check.name) for check in checks)
        for check in checks:
            mark = "ok    " if check.ok else "failed"
            session.output.line(f"{mark}  {check.name:{widest}}  {check.text}".rstrip())
    if not well:
        raise typer.Exit(ExitCode.FAILED)


def _ask_database(
    session: CommandSession, max_age: float | None, timeout: float
) -> Sequence[Check]:
    from queue_over_sql.observability import Check, check_queues

    try:
        service = session.service()
    except DatabaseUnavailable as error:
        return [Check("database", ok=False, text=str(error))]
    try:
        return check_queues(service, max_age=max_age, timeout=timeout)
    finally:
        service.stop(_END_SECONDS)


def _ask_process(address: str, path: str, timeout: float) -> Sequence[Check]:
    from http.client import HTTPConnection, HTTPException

    from queue_over_sql.observability import Check, read_address

    host, port = read_address(address)
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        checks = [Check(k, ok=v == "ok", text=str(v)) for k, v in said["checks"].items()]
    except (OSError, HTTPException, ValueError, KeyError, AttributeError) as error:
        text = (
            f"nothing answers {path} at {address}: {error}. Start the worker, the reaper or serve "
            f"with --http {address}, or give its own address with --http."
        )
        return [Check("process", ok=False, text=text)]
    finally:
        connection.close()
    return checks


@commands.add("metrics")
def metrics(
    session: CommandSession,
    *,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            show_default=False,
            help="Serve the metrics at /metrics until SIGTERM. A port without a host listens on "
            "this machine only; port 0 picks a free port, which the log shows.",
        ),
    ] = None,
) -> None:
    """Print metrics of the queues in Prometheus format, or serve them with --http.

    Run one such process per database. Workers serve the metrics of their own work, with worker
    --http.
    """
    try:
        from queue_over_sql.observability.prometheus import DatabaseCollector, exposition
    except ImportError as error:
        raise typer.BadParameter(str(error), param_hint="metrics") from error
    from queue_over_sql.cli.logs import start_logging
    from queue_over_sql.cli.probes import metrics_pages
    from queue_over_sql.observability import Health, ProbeServer

    with session.connect() as service:
        if http is None:
            whole = DatabaseCollector(service, timeout=None)
            session.output.line(exposition(whole).decode().rstrip())
            return
        collector = DatabaseCollector(service)
        start_logging("info")
        server = ProbeServer(
            Health(service, must_start=False), http, pages=metrics_pages(collector)
        )
        with stop_on_signals() as stop, server:
            stop.requested.wait()


@commands.add("doctor")
def doctor(
    session: CommandSession,
    *,
    timeout: Annotated[float, duration("Time limit for each statement.", show_default="5s")] = 5.0,
) -> None:
    """Check the database for problems.

    It checks versions, settings, clocks, indexes, consumers, bloat and rights. Each finding has a
    level (ok, note, warning, error) and advice. Exit code 1: there was an error. It reads catalogs
    and a few rows by index, with a time limit for each statement, and changes nothing.
    """
    from queue_over_sql.observability import Level, diagnose

    if timeout <= 0:
        raise typer.BadParameter("it must be longer than zero", param_hint="--timeout")
    with session.connect() as service:
        found = diagnose(service, timeout=timeout)
    if session.output.machine:
        for finding in found:
            session.output.record(dataclasses.asdict(finding))
    else:
        widest = max(len(finding.about) for finding in found)
        for finding in found:
            session.output.line(f"{finding.level:7}  {finding.about:{widest}}  {finding.text}")
            if finding.advice:
                session.output.line(f"{'':7}  {'':{widest}}  -> {finding.advice}")
        bad = sum(finding.level in {Level.WARNING, Level.ERROR} for finding in found)
        session.output.note(f"{counted(bad, 'problem')} found." if bad else "No problems found.")
    if any(finding.level is Level.ERROR for finding in found):
        raise typer.Exit(ExitCode.FAILED)
