"""The demo from start to end: on every engine, with its kill -9, and with tampered data."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from rich.console import Console, Group
from sqlalchemy import Engine, create_engine, inspect, text

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql_demo.course import Progress
from queue_over_sql_demo.databases import is_private
from queue_over_sql_demo.files import NOT_STANDARD, scan
from queue_over_sql_demo.fleet import Server, stop_servers
from queue_over_sql_demo.observer import Snapshot
from queue_over_sql_demo.view import _bars, _facts_line
from tests.cli.command_line import ROOT, Ended, command, environment, run
from tests.waiting import eventually


@pytest.mark.chaos
@pytest.mark.default_on("sqlite", "postgresql")
def test_balances_on_every_engine(database: TestDatabase, make_service: MakeService) -> None:
    """300 real files, three servers, one killed while it holds messages: each done exactly once.

    With fewer, a machine that is short of time finds no server that holds some. The queue and the
    table of the demo are gone afterwards.
    """
    arguments = ("--limit", "300", "--json", "--url", database.url)
    ended = run("demo", *arguments, seconds=300)
    assert 0 == ended.exit_code, ended.err
    assert [] == ended.record["problems"], ended.err
    account = ended.record
    assert (300, 300, 300, [], []) == tuple(
        account[name] for name in ("files", "published", "results", "lost", "twice")
    )
    assert account["killed"].startswith("server-")
    assert account["held_at_kill"] > 0
    assert account["held_at_kill"] == account["came_back"]
    assert account["redelivered"] >= account["came_back"]
    assert [] == make_service().queues()


@pytest.mark.chaos
@pytest.mark.default_on("sqlite", "postgresql")
def test_files_of_each_customer_are_done_in_order(database: TestDatabase) -> None:
    """Files of 200 customers, eight servers, three killed: each customer's one after the other."""
    arguments = ("--groups", "--limit", "1200", "--json", "--url", database.url)
    ended = run("demo", *arguments, seconds=300)
    account = ended.record
    assert [] == account["problems"], ended.err
    assert 200 == account["customers"]
    assert 3 == len(account["killed"].split(", "))
    assert 1200 == account["results"]


@pytest.mark.chaos
def test_embedded_by_default_and_told_to_people(tmp_path: Path) -> None:
    """Without --url it runs on SQLite by itself, says what happens and proves the end.

    A database of the environment, which may be somebody's real one, is left alone.
    """
    folder = _folder_of_files(tmp_path, 300)
    ended = run("demo", "--folder", str(folder), url="nosuchengine://real", seconds=300)
    assert 0 == ended.exit_code, ended.err
    assert "kill -9" in ended.err
    assert "each done exactly once" in ended.out


@pytest.mark.chaos
def test_it_can_be_watched_in_the_dashboard(tmp_path: Path) -> None:
    """Until a signal, after which nothing of it is left."""
    folder = _folder_of_files(tmp_path, 300)
    place = tmp_path / "place"
    place.mkdir()
    arguments = command("demo", "--folder", str(folder), "--serve")
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, text=True, env=environment(TMPDIR=str(place))
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if "stays at" in line:
                break
        address = re.search(r"http://[0-9.:]+", "".join(said))
        assert address is not None, said
        pages = httpx2.Client(base_url=address[0], trust_env=False)
        with pages:
            name = re.search(r"demo_[0-9a-f]{8}", pages.get("/").text)
            assert name is not None
            assert 200 == pages.get(f"/queues/{name[0]}").status_code
        assert [] != list(place.iterdir())
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(60), process.stderr.read()
    assert [] == list(place.iterdir())


@pytest.mark.chaos
def test_results_that_somebody_changed_are_found_out(sqlite_url: str) -> None:
    """A committed result is deleted, one is written twice, one bent while the demo runs: code 5.

    The parent computes all checksums again. The account names the files.
    """
    ended = _tampered(sqlite_url)
    found = {name: len(ended.record[name]) for name in ("lost", "twice", "wrong")}
    assert 5 == ended.exit_code
    assert {"lost": 1, "twice": 1, "wrong": 1} == found


@pytest.mark.chaos
@pytest.mark.full
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
    assert 5 == process.returncode
    assert ["file-zz"] == account["lost"]


@pytest.mark.chaos
def test_keep_leaves_everything(sqlite_url: str, tmp_path: Path) -> None:
    """--keep leaves queue and results on the database, and says where the logs are."""
    folder = _folder_of_files(tmp_path, 30)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ended = run(
        *("demo", "--folder", str(folder), "--no-kill", "--servers", "1", "--keep"),
        *("--url", sqlite_url),
        seconds=300,
        TMPDIR=str(temporary),
    )
    tables = inspect(create_engine(sqlite_url)).get_table_names()
    assert 0 == ended.exit_code
    assert 1 == sum(name.endswith("_results") for name in tables)
    assert "Kept:" in ended.err
    assert 1 == len(list(temporary.glob("*/server-1.log")))


def test_one_server_cannot_be_killed() -> None:
    """With nobody to take over, the demo says so instead of running."""
    assert 2 == run("demo", "--servers", "1").exit_code
    assert 2 == run("demo", "--groups", "--servers", "3").exit_code


@pytest.mark.chaos
def test_servers_that_cannot_start_are_reported(sqlite_url: str, tmp_path: Path) -> None:
    """Servers whose interpreter fails to start: their own words, code 1, no hanging."""
    folder = _folder_of_files(tmp_path, 5)
    hook = "import sys\nif sys.orig_argv[2:] == ['queue_over_sql_demo']: sys.exit('no start')"
    (tmp_path / "sitecustomize.py").write_text(hook)
    ended = run(
        *("demo", "--folder", str(folder), "--url", sqlite_url),
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
    )
    assert 1 == ended.exit_code
    assert "ended unexpectedly" in ended.err
    assert "no start" in ended.err


def test_a_server_that_ended_before_its_order_is_stopped(tmp_path: Path) -> None:
    """It never reads what it was sent; to close its pipe must not hide why it ended."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, text=True)
    process.wait()
    assert process.stdin is not None
    process.stdin.write("an order")
    stop_servers([Server("server-1", process, tmp_path / "log")])
    assert process.stdin.closed


def test_a_database_of_one_process_is_refused(tmp_path: Path) -> None:
    """What no second process can open is wrong usage, said before anything is made."""
    ended = run("demo", "--url", "sqlite://", cwd=tmp_path)
    assert 2 == ended.exit_code
    assert "one process" in ended.err
    assert [] == list(tmp_path.iterdir())


def test_which_databases_many_processes_can_share() -> None:
    """Files of SQLite, servers, and files of H2 with AUTO_SERVER; not what lies in memory."""
    private = ("sqlite://", "h2:///./x", "h2:///mem:x", "sqlite:///file:x?mode=memory&uri=true")
    shared = ("sqlite:///x.db", "h2://h/./x", "h2:///./x?auto_server=true", "postgresql://h/x")
    assert list(private) == [url for url in (*private, *shared, "no url") if is_private(url)]


def test_no_files_are_said_at_once(tmp_path: Path) -> None:
    """An empty folder is code 3 with its name, before a server is started."""
    ended = run("demo", "--folder", str(tmp_path))
    assert 3 == ended.exit_code
    assert f"no files below {tmp_path}" in ended.err
    assert "ready" not in ended.err


def test_the_standard_library_is_without_what_was_installed(tmp_path: Path) -> None:
    """Packages of other people and compiled files are left out where that is asked for."""
    for name in ("a.py", "site-packages/b.py", "c/__pycache__/d.pyc", "c/dist-packages/e", "c/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert ["a.py", "c/f"] == [file.path for file in scan(tmp_path, without=NOT_STANDARD).files]


def test_the_view_does_not_wrap() -> None:
    """At 80 columns with large numbers each line of the live view stays one line."""
    progress = Progress(50_724, published=50_000, first_publish=0.0, last_done=2.0)
    claimed = {str(number): 1_000 for number in range(3)}
    progress.snapshot = Snapshot(9, claimed, {"server-1": (49_119, 1_119)})
    console = Console(width=80, file=io.StringIO())
    lines = console.render_lines(Group(_bars(progress), _facts_line(progress)))
    assert 3 == len(lines)


@pytest.mark.chaos
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


def _demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("demo", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )


def _tampered(url: str) -> Ended:
    """Run the demo while the first three results that are committed are tampered with."""
    engine = create_engine(url)
    with _demo("--limit", "60", "--sample", "60", "--json", "--url", url) as process:
        eventually(lambda: _tamper(engine), "there are results to tamper with", within=120)
        out, _ = process.communicate(timeout=300)
    engine.dispose()
    return Ended(process.returncode, out, "")


def _tamper(engine: Engine) -> bool:
    tables = [name for name in inspect(engine).get_table_names() if name.endswith("_results")]
    if not tables:
        return False
    [table], fields = tables, "message_id, file_number, file_path, sha256, file_size, server_name"
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 10000")
        found = connection.execute(text(f"SELECT delivery FROM {table} LIMIT 3")).scalars().all()
        if len(found) < 3:
            return False
        copied = f"SELECT 'again', {fields}, attempt FROM {table}"
        tampering = (
            f"DELETE FROM {table}",
            f"INSERT INTO {table} (delivery, {fields}, attempt) {copied}",
            f"UPDATE {table} SET sha256 = 'bent'",
        )
        for statement, delivery in zip(tampering, found, strict=True):
            where = text(f"{statement} WHERE delivery = :delivery")
            connection.execute(where, {"delivery": delivery})
    return True


def _children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listed.stdout.split()]


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
