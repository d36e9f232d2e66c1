"""Probes of commands that run until they are stopped: their address, and their metrics page."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from queue_over_sql.inside.workers import Supervisor
    from queue_over_sql.observability import Probed, ProbePage, Report

HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        show_default=False,
        help="Serve /livez, /readyz and /metrics at this address. A port without a host listens "
        "on this machine only; port 0 picks a free port, which the log shows.",
    ),
]


@contextlib.contextmanager
def probing(probed: Probed, address: str | None) -> Iterator[None]:
    """Answer probes at an address, if one is given, and notify systemd, if it is the parent."""
    from queue_over_sql.observability import ProbeServer, SystemdNotifier

    server: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if address is not None:
        server = ProbeServer(probed, address, pages=metrics_pages())
    with server, SystemdNotifier(probed):
        yield


def metrics_pages(*collectors: object) -> dict[str, Callable[[], ProbePage]]:
    """The metrics page, with further collectors; none without prometheus_client."""
    from queue_over_sql.observability import ProbePage

    if not has_prometheus():
        return {}
    from queue_over_sql.observability.prometheus import CONTENT_TYPE, exposition

    return {"/metrics": lambda: ProbePage(exposition(*collectors).decode(), kind=CONTENT_TYPE)}


def has_prometheus() -> bool:
    """Whether prometheus_client is installed."""
    return find_spec("prometheus_client") is not None


@contextlib.contextmanager
def metrics_together() -> Iterator[None]:
    """Let the processes that are started in the block share their metrics."""
    name = "PROMETHEUS_MULTIPROC_DIR"
    if not has_prometheus() or name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="queue-over-sql-metrics-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


class SupervisorHealth:
    """The health of a supervisor and its processes, for probes."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def live(self) -> Report:
        """Report whether each process makes progress."""
        from queue_over_sql.observability import Report

        return Report.of(self._supervisor.live())

    def ready(self) -> Report:
        """Report whether each process can work now."""
        from queue_over_sql.observability import Report

        return Report.of(self._supervisor.ready())
