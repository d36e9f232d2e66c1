"""The private servers of all other tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from queue_over_sql.testing.plugin import TestServer
from queue_over_sql.testing.servers import (
    SERVER_ENGINES,
    ExternalServer,
    H2Server,
    MariadbServer,
    PostgresqlServer,
    PrivateServer,
    ServerMissing,
    obtain,
    obtain_private,
    url_variable,
)
from queue_over_sql.testing.servers.process import find_binary, folder_variable, free_port
from tests.waiting import eventually


def write(url: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE fact (a INT)"))
        connection.execute(text("INSERT INTO fact VALUES (42)"))


def read(url: str) -> list[int]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT a FROM fact")))


def accepts(url: str) -> bool:
    address = make_url(url)
    with socket.socket() as client:
        return client.connect_ex((address.host, address.port)) == 0


def test_data_and_port_outlast_a_stop_and_a_kill(server: TestServer) -> None:
    """A committed row is there after stop and start, and after kill and start, at the same URL."""
    write(server.url)
    server.stop()
    down = accepts(server.url)
    server.start()
    after_stop = read(server.url)
    server.kill()
    # PostgreSQL's other processes listen until they notice that the first one is gone.
    eventually(lambda: not accepts(server.url), "the port is closed")
    server.start()

    assert not down
    assert [42] == after_stop
    assert [42] == read(server.url)


def test_listens_on_the_loopback_interface_only(server_engine: str) -> None:
    """Nobody on the network reaches a server of a test: its port is open on 127.0.0.1 alone."""
    private = obtain_private(server_engine)
    with private:
        port = private.address.port
        listening = subprocess.run(
            ["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True, check=True
        )

    lines = [line.split() for line in listening.stdout.splitlines()]
    local = {line[1] for line in lines if line[3:4] == ["0A"] and line[1].endswith(f":{port:04X}")}
    loopback = {f"0100007F:{port:04X}", f"0000000000000000FFFF00000100007F:{port:04X}"}
    assert local
    assert local <= loopback


def test_closing_removes_the_folder(server_engine: str) -> None:
    """A closed server leaves nothing behind."""
    private = obtain_private(server_engine)
    assert isinstance(private, PrivateServer)
    with private:
        folder = private.folder
        there = folder.exists()

    assert there
    assert not folder.exists()


def test_starts_where_the_temporary_folder_is_closed_to_others(
    server_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TMPDIR that only this user may enter does not stop a server that runs as another one."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(closed))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with obtain_private(server_engine) as private:
        assert accepts(private.url("any"))


@pytest.mark.engines("postgresql")
@pytest.mark.usefixtures("server_engine")
def test_a_failed_start_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the data cannot be prepared, the error says why and the folder is removed."""
    private = PostgresqlServer()
    monkeypatch.setattr(private, "_initdb", Path("/bin/false"))
    with pytest.raises(RuntimeError, match="/bin/false failed with 1"), private:
        pass

    assert not private.folder.exists()


@pytest.mark.chaos
def test_a_server_dies_with_its_killed_session(server_engine: str) -> None:
    """After ``kill -9`` of the process that started it, a server and its folder go away."""
    program = (
        "import sys, time\n"
        "from queue_over_sql.testing.servers import obtain_private\n"
        "server = obtain_private(sys.argv[1])\n"
        "server.start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, server_engine], stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout is not None
        pid, folder = session.stdout.readline().split()
        alive = Path(f"/proc/{pid}").exists()
        session.send_signal(signal.SIGKILL)

    assert alive
    deadline = time.monotonic() + 20
    while (Path(f"/proc/{pid}").exists() or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(folder).exists()


@pytest.mark.engines("postgresql", "mariadb", "h2")
def test_a_database_is_dropped_from_under_open_transactions(server_engine: str) -> None:
    """A test that leaves a transaction open cannot block the end of its database."""
    kinds: dict[str, type[PrivateServer]]
    kinds = {"postgresql": PostgresqlServer, "mariadb": MariadbServer, "h2": H2Server}
    with kinds[server_engine]() as private:
        url = private.create_database("doomed")
        write(url)
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text("SELECT a FROM fact"))
            private.drop_database("doomed")
            private.drop_database("doomed")
            connection.invalidate()
        fresh = private.create_database("doomed")
        write(fresh)
        assert [42] == read(fresh)


@pytest.mark.engines("postgresql", "mariadb", "h2")
def test_a_given_server_serves_fresh_databases(
    server_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL in the environment wins over a private server, and databases come and go there."""
    with obtain_private(server_engine) as private:
        monkeypatch.setenv(url_variable(server_engine), private.url("postgres"))
        given = obtain(server_engine)
        assert isinstance(given, ExternalServer)
        url = given.create_database("first")
        write(url)
        rows = read(url)
        given.drop_database("first")
        given.create_database("first")
        write(url)

        assert [42] == rows
        assert [42] == read(url)


def test_a_given_server_is_not_stopped() -> None:
    """Somebody else's server cannot be stopped or killed by a test."""
    given = ExternalServer(
        "postgresql",
        make_url("postgresql+psycopg://host/x"),
        PostgresqlServer.databases,
        "given by hand",
    )
    for operation in (given.stop, given.kill):
        with pytest.raises(RuntimeError, match=r"given by hand.*cannot stop it"):
            operation()


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        ("postgresql", "postgresql"),
        ("mariadb", "mariadb-server"),
        ("mysql", "MySQL 8 or newer"),
        ("h2", "libh2-java"),
    ],
)
def test_a_missing_server_says_what_to_install(
    engine: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its binaries an engine is refused with the name of the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("H2_JAR", raising=False)
    monkeypatch.delenv("CLASSPATH", raising=False)
    monkeypatch.delenv(url_variable(engine), raising=False)
    monkeypatch.delenv(folder_variable(engine), raising=False)
    monkeypatch.setattr("pathlib.Path.glob", lambda *_: iter(()))
    monkeypatch.setattr("queue_over_sql.testing.servers.docker_answers", lambda: False)
    with pytest.raises(ServerMissing, match=f"install (the package )?{package}"):
        obtain(engine)


def test_the_newest_binary_is_found_where_the_path_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several versions beside each other the highest number is taken."""
    monkeypatch.delenv(folder_variable("postgresql"), raising=False)
    for version in ("9", "15", "13"):
        binary = tmp_path / version / "bin" / "serve-nobody"
        binary.parent.mkdir(parents=True)
        binary.touch(mode=0o755)

    found = find_binary("postgresql", "serve-nobody", f"{tmp_path}/*/bin")
    assert tmp_path / "15" / "bin" / "serve-nobody" == found


def test_the_folder_that_the_environment_names_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs are taken from there alone: a wrong folder is an error, not another server."""
    monkeypatch.setenv(folder_variable("mysql"), str(tmp_path))
    missing = find_binary("mysql", "sh")
    program = tmp_path / "sh"
    program.touch(mode=0o755)

    assert missing is None
    assert program == find_binary("mysql", "sh")


@pytest.mark.parametrize(
    ("engine", "driver"),
    [("postgresql", "psycopg"), ("mysql", "pymysql"), ("mariadb", "pymysql"), ("h2", "jaydebeapi")],
)
def test_a_given_url_without_a_driver_gets_ours(
    engine: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``mysql://`` means to the tests what it means to a service."""
    monkeypatch.setenv(url_variable(engine), f"{engine}://root@127.0.0.1/x")
    assert f"{engine}+{driver}://root@127.0.0.1/y" == obtain(engine).url("y").split("?")[0].replace(
        "/./", "/"
    )


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    """A client that retries while its server is down can never hold the server's port."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))

    assert port < max(lowest, 32_000)


def test_the_command_tells_where_each_server_comes_from() -> None:
    """``python -m queue_over_sql.testing.servers`` names every engine and fails if one is missing.

    The unknown binaries are simulated by an empty PATH that still has the interpreter's own path.
    """
    command = [sys.executable, "-m", "queue_over_sql.testing.servers", *SERVER_ENGINES]
    given = {url_variable(engine): f"{engine}://host/x" for engine in SERVER_ENGINES}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **given}
    )

    assert 0 == done.returncode
    assert "" == done.stderr
    expected = [f"{engine}: given by {url_variable(engine)}" for engine in SERVER_ENGINES]
    assert expected == done.stdout.splitlines()


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("nonsense", 2)])
def test_the_command_explains_itself(argument: str, code: int) -> None:
    """Help, and a name that is none: the engines that there are, and no traceback."""
    command = [sys.executable, "-m", "queue_over_sql.testing.servers", argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert code == done.returncode
    assert "Traceback" not in said
    assert [] == [engine for engine in SERVER_ENGINES if engine not in said]
