"""The commands of `sql-api`, and the consumer of SQL clients in `consumers`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from queue_over_sql import QueueService
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.testing.plugin import TestDatabase
from tests.cli.command_line import run, succeed

SERVERS = pytest.mark.engines("postgresql", "mariadb", "mysql")
ALLOWED = pytest.mark.usefixtures("functions_allowed")


def put(database: TestDatabase) -> Any:
    """Put a message in by the SQL API."""
    engine = create_engine(database.url, poolclass=NullPool)
    with engine.begin() as connection:
        return connection.exec_driver_sql("SELECT put_message_in_queue('jobs', '7', 0, 0)").scalar()


@SERVERS
@ALLOWED
def test_install_and_uninstall(database: TestDatabase, service: QueueService) -> None:
    """Both say what they did, for a person and for a machine; installing again is fine."""
    queue = service.create_queue("jobs")
    assert "The SQL API is installed.\n" == succeed("sql-api", "install", url=database.url).out
    again = succeed("sql-api", "install", "--json", url=database.url)
    assert {"installed": True, "roles": []} == again.record
    put(database)
    assert [7] == [message.payload for message in queue.consume()]
    removed = succeed("sql-api", "uninstall", "--yes", "--json", url=database.url)
    assert {"uninstalled": True} == removed.record
    ended = run("sql-api", "uninstall", "--yes", url=database.url)
    assert ExitCode.NOTHING == ended.exit_code
    assert "" == ended.out


@SERVERS
@ALLOWED
def test_uninstall_asks(database: TestDatabase, service: QueueService) -> None:
    """Where nobody can be asked nothing is removed."""
    service.create_queue("jobs")
    succeed("sql-api", "install", url=database.url)
    assert 0 != run("sql-api", "uninstall", url=database.url).exit_code
    put(database)


@SERVERS
@ALLOWED
def test_an_unknown_role_is_an_error(database: TestDatabase, service: QueueService) -> None:
    """The database's word is passed on."""
    service.create_queue("jobs")
    ended = run("sql-api", "install", "--role", "no_such_role", url=database.url)
    assert ExitCode.FAILED == ended.exit_code
    assert "no_such_role" in ended.err


@SERVERS
@ALLOWED
def test_print_writes_a_script(database: TestDatabase, service: QueueService) -> None:
    """Every routine is in it, and nothing is installed by printing."""
    service.create_queue("jobs")
    script = succeed("sql-api", "print", url=database.url).out
    names = ("put_message_in_queue", "get_message_from_queue", "delete_message_from_queue")
    assert all(name in script for name in names)
    record = succeed("sql-api", "print", "--json", url=database.url).record
    assert script.splitlines()[-1] in record["script"]
    assert [] == service.consumers()


@SERVERS
@ALLOWED
def test_consumers_list_the_sql_clients(database: TestDatabase, service: QueueService) -> None:
    """One row for all of them, without a heartbeat that would grow old."""
    service.create_queue("jobs")
    service.sql_api.install()
    listed = succeed("consumers", url=database.url).out
    [row] = [line for line in listed.splitlines() if "sql-api" in line]
    assert "any SQL client" in row
    assert row.endswith("none needed  unknown")
    assert "-1" not in row
    [record] = succeed("consumers", "--json", url=database.url).records
    assert "sql-api" == record["consumer_id"]
    assert json.dumps(record["expires_at"]).startswith('"9999')


def test_engines_without_routines_say_so(sqlite_url: str) -> None:
    """SQLite has no stored functions."""
    for name in ("install", "print"):
        ended = run("sql-api", name, url=sqlite_url)
        assert ExitCode.FAILED == ended.exit_code
        assert "does not support the SQL API" in ended.err
