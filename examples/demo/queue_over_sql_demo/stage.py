"""Sets up the demo: tables, queue, servers; and cleans up."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from sqlalchemy import Table

from queue_over_sql import FixedDelay, Queue, QueueService
from queue_over_sql.cli.signals import Stop
from queue_over_sql.service import parts_of
from queue_over_sql_demo.account import Account
from queue_over_sql_demo.course import Course, Progress
from queue_over_sql_demo.files import Scan
from queue_over_sql_demo.fleet import running_servers
from queue_over_sql_demo.observer import Observer
from queue_over_sql_demo.plan import Plan, ServerOrder
from queue_over_sql_demo.results import results_table
from queue_over_sql_demo.server import open_service


@contextmanager
def work_folder(*, keep: bool) -> Iterator[Path]:
    """A new temporary folder for the logs and the embedded database; removed unless `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="queue-over-sql-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Stage:
    """The demo's place in the database."""

    service: QueueService
    queue: Queue
    results: Table


@contextmanager
def set_stage(plan: Plan) -> Iterator[Stage]:
    """Create the demo's queue and results table; drop both at the end unless `keep`."""
    service = open_service(ServerOrder.of(plan, "demo"))
    results = results_table(plan.results, plan.schema)
    try:
        limit = None if plan.customers is None else 1
        queue = service.create_queue(plan.name, retry=FixedDelay(0.2), group_limit=limit)
        parts_of(service).connections.run(results.create)
        yield Stage(service, queue, results)
    finally:
        service.stop()
        if not plan.keep:
            clear_stage(plan)


def clear_stage(plan: Plan) -> None:
    """Drop the demo's queue and results table."""
    results = results_table(plan.results, plan.schema)
    with _opened(plan) as service:
        connections = parts_of(service).connections
        connections.run(lambda connection: results.drop(connection, checkfirst=True))
        service.drop_queue(plan.name)


@contextmanager
def dashboard(plan: Plan) -> Iterator[str]:
    """Serve the dashboard of the demo's database on this machine; returns its address."""
    try:
        from queue_over_sql.web.app import create_app
        from queue_over_sql.web.server import serving
        from queue_over_sql.web.settings import Role, WebSettings
    except ImportError as error:
        problem = f"it needs the extra web: pip install 'queue-over-sql[web]' ({error})"
        raise typer.BadParameter(problem, param_hint="--serve") from error
    with _opened(plan) as service:
        app = create_app(service, WebSettings(title="demo", open_role=Role.ADMIN))
        with serving(app) as address:
            yield address


@contextmanager
def _opened(plan: Plan) -> Iterator[QueueService]:
    order = ServerOrder.of(plan, "demo")
    service = open_service(order)
    try:
        yield service
    finally:
        service.stop()


def perform(
    plan: Plan,
    scan: Scan,
    logs: Path,
    *,
    stop: Stop,
    show: Callable[[Progress, Course], None],
    tell: Callable[[str], None],
) -> tuple[Account, Progress]:
    """Run the demo and return its account; `DemoError` if it cannot run."""
    with set_stage(plan) as stage:
        observer = Observer(stage.service, stage.queue, stage.results)
        with running_servers(plan, logs) as servers:
            course = Course(
                plan,
                stage.queue,
                observer,
                servers,
                scan.files,
                stop=stop,
                show=lambda progress: show(progress, course),
                tell=tell,
            )
            course.wait_for_servers()
            course.run()
        return course.account(), course.progress
