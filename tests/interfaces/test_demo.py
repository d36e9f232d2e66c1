"""The demo end to end: on every engine, with its kill -9, and tampered with from outside."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.interfaces.command_line import Ended, command, environment, eventually, run

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


def test_balances_on_every_engine(database: TestDatabase, make_service: MakeService) -> None:
    """150 real files, three servers, one killed while it holds messages: each done exactly once.

    The queue and the table of the demo are gone afterwards.
    """
    ended = run("demo", "--limit", "150", "--json", url=database.url, seconds=100)
    assert (0, []) == (ended.exit_code, ended.record["problems"]), ended.err
    account = ended.record
    assert (150, 150, 150, [], []) == tuple(
        account[name] for name in ("files", "published", "results", "lost", "twice")
    )
    assert account["killed"].startswith("server-")
    assert account["redelivered"] >= account["came_back"] == account["held_at_kill"] > 0
    assert [] == make_service().queues()


def test_embedded_by_default_and_told_to_people(tmp_path: Path) -> None:
    """Without a URL it runs on SQLite by itself, says what happens and proves the end."""
    folder = _folder_of_files(tmp_path, 60)
    ended = run("demo", "--folder", str(folder), seconds=100)
    assert 0 == ended.exit_code, ended.err
    assert (True, True) == ("kill -9" in ended.err, "each done exactly once" in ended.out)


@pytest.mark.engines("sqlite")
def test_a_deleted_result_is_found_out(database: TestDatabase) -> None:
    """Somebody deletes one committed result while the demo runs: code 5, the file is named."""
    ended = _tampered(database.url, "DELETE FROM {table} WHERE delivery = :delivery")
    assert (5, 1) == (ended.exit_code, len(ended.record["lost"]))


@pytest.mark.engines("sqlite")
def test_a_doubled_result_is_found_out(database: TestDatabase) -> None:
    """Somebody writes one result a second time: code 5, the file is named as done twice."""
    copied = "message_id, file_number, file_path, sha256, file_size, server_name, attempt"
    ended = _tampered(
        database.url,
        f"INSERT INTO {{table}} (delivery, {copied}) "
        f"SELECT 'again', {copied} FROM {{table}} WHERE delivery = :delivery",
    )
    assert (5, 1) == (ended.exit_code, len(ended.record["twice"]))


@pytest.mark.engines("sqlite")
def test_a_bent_checksum_is_found_out(database: TestDatabase) -> None:
    """Somebody changes one checksum: the parent computes all again, and finds it."""
    ended = _tampered(database.url, "UPDATE {table} SET sha256 = 'bent' WHERE delivery = :delivery")
    assert (5, 1) == (ended.exit_code, len(ended.record["wrong"]))


def test_a_file_that_cannot_be_processed_unbalances_it(tmp_path: Path) -> None:
    """A file that vanishes after the scan has no result; the demo does not hide that."""
    folder = _folder_of_files(tmp_path, 40)
    passing = folder / "file-zz"
    passing.write_text("here for the scan only")
    with _demo("--folder", str(folder), "--json", "--no-kill", "--deadline", "20s") as process:
        eventually(lambda: _children(process.pid) != [], "servers are started after the scan")
        passing.unlink()
        out, _ = process.communicate(timeout=100)
    account = json.loads(out)
    assert (5, ["file-zz"]) == (process.returncode, account["lost"])


def test_keep_leaves_everything(sqlite_url: str, tmp_path: Path) -> None:
    """--keep leaves queue and results on the database, and says where the logs are."""
    folder = _folder_of_files(tmp_path, 30)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ended = run(
        *("demo", "--folder", str(folder), "--no-kill", "--servers", "1", "--keep"),
        url=sqlite_url,
        TMPDIR=str(temporary),
    )
    tables = inspect(create_engine(sqlite_url)).get_table_names()
    assert (0, 1) == (ended.exit_code, sum(name.endswith("_results") for name in tables))
    assert (True, 1) == ("Kept:" in ended.err, len(list(temporary.glob("*/server-1.log"))))


def test_one_server_cannot_be_killed() -> None:
    """With nobody to take over, the demo says so instead of running."""
    assert 2 == run("demo", "--servers", "1").exit_code


def test_servers_that_cannot_start_are_reported(tmp_path: Path) -> None:
    """A database that is private to one process: the servers' own words, code 1, no hanging."""
    folder = _folder_of_files(tmp_path, 5)
    ended = run("demo", "--folder", str(folder), url="sqlite://")
    assert (1, True) == (ended.exit_code, "ended by itself" in ended.err)


def test_no_server_outlives_the_demo(tmp_path: Path) -> None:
    """Kill -9 of the demo itself: its servers notice and end."""
    folder = _folder_of_files(tmp_path, 30)
    pids: list[int] = []
    with _demo("--folder", str(folder), "--json", "--deadline", "60s") as process:
        eventually(lambda: len(_children(process.pid)) == 3, "three servers run")
        pids = _children(process.pid)
        process.kill()
    eventually(lambda: not any(_runs(pid) for pid in pids), "the servers have ended")


def _folder_of_files(tmp_path: Path, count: int) -> Path:
    folder = tmp_path / "input"
    (folder / "deep").mkdir(parents=True)
    for number in range(count):
        place = folder / "deep" if number % 2 else folder
        (place / f"file-{number:03}").write_bytes(os.urandom(50_000))
    (folder / "déjà \U0001f600.txt").write_text("a name of its own")
    (folder / "link").symlink_to(folder / "file-000")
    return folder


def _demo(*arguments: str, url: str | None = None) -> subprocess.Popen[str]:
    variables = {} if url is None else {"QUEUE_OVER_SQL_URL": url}
    return subprocess.Popen(
        command("demo", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(**variables),
    )


def _tampered(url: str, statement: str) -> Ended:
    """Run the demo while `statement` is applied to the first result that is committed."""
    engine = create_engine(url)
    with _demo("--limit", "150", "--sample", "150", "--json", url=url) as process:
        eventually(lambda: _tamper(engine, statement), "there is a result to tamper with")
        out, _ = process.communicate(timeout=100)
    engine.dispose()
    return Ended(process.returncode, out, "")


def _tamper(engine: Engine, statement: str) -> bool:
    tables = [name for name in inspect(engine).get_table_names() if name.endswith("_results")]
    if not tables:
        return False
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 10000")
        found = connection.execute(text(f"SELECT delivery FROM {tables[0]} LIMIT 1")).scalar()
        if found is None:
            return False
        connection.execute(text(statement.format(table=tables[0])), {"delivery": found})
    return True


def _children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listed.stdout.split()]


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
