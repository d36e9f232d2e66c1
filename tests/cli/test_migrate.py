"""`migrate`: changes for an earlier release are shown, printed as SQL, and made."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, create_engine

from queue_over_sql.schema.queue_tables import SCHEMA_VERSION
from tests.cli.command_line import run, succeed
from tests.contract.migrations.dumps import load


@pytest.fixture
def old(sqlite_url: str) -> Engine:
    """A database that the earlier release has left."""
    engine = create_engine(sqlite_url)
    load(engine, "sqlite")
    return engine


def _versions(engine: Engine) -> set[int]:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT schema_version FROM queue_over_sql_queues")
        return {row[0] for row in found}


def test_looking_changes_nothing(old: Engine, sqlite_url: str) -> None:
    """Each way to look says the same; only `--check` tells it by its exit code."""
    planned = succeed("migrate", "--plan", url=sqlite_url)
    assert "Pending: queue 'texts' from version 1 to 4: add the column" in planned.out
    checked = run("migrate", "--check", url=sqlite_url)
    assert 1 == checked.exit_code
    assert planned.out == checked.out
    records = succeed("migrate", "--plan", "--json", url=sqlite_url).records
    assert {False} == {record["done"] for record in records}
    assert 5 + 9 == len(records)
    assert {1} == _versions(old)


def test_the_sql_brings_the_tables_up_to_date(old: Engine, sqlite_url: str) -> None:
    """Run by somebody else, in whatever program."""
    written = succeed("migrate", "--sql", url=sqlite_url)
    assert "" == written.err
    with old.begin() as connection:
        for statement in written.out.strip().removesuffix(";").split(";\n"):
            connection.exec_driver_sql(statement)
    assert {SCHEMA_VERSION} == _versions(old)
    assert "The tables are up to date.\n" == succeed("migrate", "--check", url=sqlite_url).err


def test_migrate_does_it_once(old: Engine, sqlite_url: str) -> None:
    """Again there is nothing to do."""
    done = succeed("migrate", "--json", url=sqlite_url).records
    assert {True} == {record["done"] for record in done}
    assert {SCHEMA_VERSION} == _versions(old)
    again = succeed("migrate", url=sqlite_url)
    assert "" == again.out
    assert "The tables are up to date.\n" == again.err


def test_a_newer_database_is_refused(old: Engine, sqlite_url: str) -> None:
    """With what to install; in every way."""
    with old.begin() as connection:
        connection.exec_driver_sql("UPDATE queue_over_sql_queues SET schema_version = 99")
    for option in ("--plan", "--sql", "--check", "--json"):
        refused = run("migrate", option, url=sqlite_url)
        assert 1 == refused.exit_code
        assert "" == refused.out
        assert "Install the newest release of queue-over-sql" in refused.err
    assert {99} == _versions(old)


def test_two_ways_at_once_are_wrong_usage(sqlite_url: str) -> None:
    """They exclude one another."""
    assert 2 == run("migrate", "--plan", "--sql", url=sqlite_url).exit_code
