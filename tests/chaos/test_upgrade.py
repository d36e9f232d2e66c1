"""An upgrade beside live workers of the previous release, killed in the middle repeatedly."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text

from queue_over_sql import DatabaseUnavailable
from queue_over_sql.migrations import upgrade
from queue_over_sql.schema.queue_tables import SCHEMA_VERSION
from tests.chaos.account import archived, archived_count, archived_tokens, live_tokens, repeated
from tests.chaos.earlier import earlier_code
from tests.chaos.roles import migrator, publisher, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from queue_over_sql.testing.plugin import MakeService, TestDatabase
    from tests.chaos.processes import Crew, Process

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.empty_database,
    # On H2 a minute of it is a wait, and the bounds of its other steps add up to more than this.
    pytest.mark.timeout(600),
    pytest.mark.default_on("sqlite", "postgresql"),
]

CREATE = """
import sys
from queue_over_sql import QueueService
assert not hasattr(QueueService, "migrations"), "this is not the release before"
QueueService(sys.argv[1], notify=False).create_queue("jobs", archive="all", lease=20)
"""
# The last one is before the version is written down.
KILLS = ("queue_over_sql_queues", "queue_jobs", "queue_jobs_archive")


def made_by_the_release_before(code: Path, url: str) -> None:
    """Create the queue `jobs` with that release."""
    subprocess.run([sys.executable, "-c", CREATE, url], cwd=code, check=True, timeout=60)


def version_and_columns(sql: Engine) -> tuple[int, bool]:
    """The queue's version, and whether its archive, which is the last, has the newest column."""
    look = inspect(sql)
    with sql.connect() as connection:
        version = connection.execute(text("SELECT schema_version FROM queue_over_sql_queues"))
        columns = {column["name"] for column in look.get_columns("queue_jobs_archive")}
        return int(version.scalar_one()), "last_traceback" in columns


def consumers(sql: Engine) -> int:
    """How many are registered."""
    with sql.connect() as connection:
        found = connection.execute(text("SELECT COUNT(*) FROM queue_over_sql_consumers"))
        return int(found.scalar_one())


def end(source: Process, workers: list[Process]) -> None:
    """Stop the publisher, and kill the workers."""
    source.tell("stop")
    source.join()
    while workers:
        workers.pop().kill()


def test_workers_of_the_release_before_drain_the_queue_meanwhile(
    database: TestDatabase, sql: Engine, crew: Crew, tmp_path: Path
) -> None:
    """Three kills, a completed upgrade and a worker of each release: nothing is lost or doubled.

    On H2 nobody else may be at work during an upgrade: its workers are killed before.
    """
    code = earlier_code(tmp_path)
    made_by_the_release_before(code, database.url)
    journal = str(crew.journals)
    at_work = worker.Arguments(database.url, journal, seconds=0.005, consumer_timeout=20.0)
    publishing = publisher.Arguments(database.url, journal, mode="one", name="p", pause=0.05)
    before = [crew.spawn(at_work, code) for _ in range(2)]
    source = crew.spawn(publishing, code)
    for process in [*before, source]:
        process.expect("ready")
    source.tell("go")

    def goes_on() -> None:
        # Only counted: to read what a minute has archived, again and again, holds all of them up.
        done = archived_count(sql)

        def some_more() -> bool:
            for process in [*before, source]:
                process.check_alive()
            return archived_count(sql) > done + 5

        eventually(some_more, "they go on", every=0.05)

    goes_on()
    beside = database.engine != "h2"
    if not beside:
        end(source, before)
    # On H2 a minute passes until the lock of who was killed counts no more.
    for dies_after in KILLS[-1:] if database.engine == "h2" else KILLS:
        killed = crew.spawn(migrator.Arguments(database.url, dies_after))
        assert -9 == killed.join(150), killed.errors()
        assert version_and_columns(sql)[0] < SCHEMA_VERSION
        if beside:
            goes_on()
    done = crew.spawn(migrator.Arguments(database.url)).expect("done", within=150)
    assert "jobs" == done["queues"][-1]
    assert (SCHEMA_VERSION, True) == version_and_columns(sql)

    after = crew.spawn(at_work)
    after.expect("ready")
    if beside:
        goes_on()
        before.pop().kill()
        goes_on()
        source.tell("stop")
        source.join()
    account = crew.account()
    published = set(account.tokens("published"))
    eventually(lambda: not live_tokens(sql), "all is done", within=100, every=0.1)
    for process in (*before, after):
        process.check_alive()
        assert "Traceback" not in process.errors(), process.errors()
    assert {"done"} == {outcome for _, outcome in archived(sql)}
    assert [] == repeated(archived_tokens(sql, "done"))
    done_tokens = set(archived_tokens(sql, "done"))
    assert set() == published - done_tokens
    assert set() == done_tokens - set(account.tokens("intends"))


@pytest.mark.engines("h2")
@pytest.mark.default_on("h2")
def test_h2_is_upgraded_once_others_have_left(
    *,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
    tmp_path: Path,
    make_service: MakeService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ALTER beside a commit of theirs can destroy the file, so none is sent meanwhile."""
    code = earlier_code(tmp_path)
    made_by_the_release_before(code, database.url)
    beside = crew.spawn(worker.Arguments(database.url, str(crew.journals)), code)
    eventually(lambda: consumers(sql), "its worker is connected")
    service = make_service(notify=False)
    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_TIMEOUT", 0.5)
        patch.setattr(upgrade, "_TIMEOUT_AT_OPENING", 0.0)
        for act in (service.start, service.migrations.apply, lambda: service.queue("jobs")):
            told = r"other connections? to the database w.*stop the other"
            with pytest.raises(DatabaseUnavailable, match=told):
                act()
    beside.check_alive()
    assert (1, False) == version_and_columns(sql)
    with ThreadPoolExecutor(2) as pool:
        # Who waits is in nobody's way who waits, too.
        waiting = [pool.submit(one.migrations.apply) for one in (service, make_service())]
        beside.kill()
        for each in waiting:
            each.result(60)
    assert (SCHEMA_VERSION, True) == version_and_columns(sql)
    # Where nothing is to be done nobody is in the way.
    monkeypatch.setattr(upgrade, "_TIMEOUT", 0.0)
    with sql.connect():
        assert [] == service.migrations.apply()
        service.start()
