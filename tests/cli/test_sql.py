"""The command `sql`."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from tests.cli.command_line import run, succeed


def test_statements_are_printed_and_not_sent(sqlite_url: str) -> None:
    """By the names of the tables, for people and for programs; the queue stays as it is."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", url=sqlite_url)
    text = succeed("sql", "jobs", url=sqlite_url).out
    assert re.search(r"^-- claim\nUPDATE queue_jobs\nSET ", text, re.MULTILINE)
    assert "\n-- ack, archive (1 of " in text
    found = succeed("sql", "jobs", "ack", "nack", "--json", url=sqlite_url).records
    assert {"operation", "place", "statements", "sql"} == set(found[0])
    assert {"ack", "nack"} == {record["operation"].partition(",")[0] for record in found}
    [message] = succeed("peek", "jobs", "--json", url=sqlite_url).records
    assert 0 == message["attempt"]


def test_an_unknown_operation_names_the_others(sqlite_url: str) -> None:
    """Exit code 3, and a way on."""
    succeed("create", "jobs", url=sqlite_url)
    for names in (["acknowledge"], ["ack", "acknowledge"]):
        result = run("sql", "jobs", *names, url=sqlite_url)
        assert 3 == result.exit_code
        assert "" == result.out
        assert "begins with 'acknowledge'. The operations are: publish, " in result.err


def test_the_statements_of_an_adopted_table(sqlite_url: str) -> None:
    """They name the user's table; what it cannot do is left out."""
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)")
    succeed("adopt", "billing", "orders", url=sqlite_url)
    found = succeed("sql", "billing", "--json", url=sqlite_url).records
    claims = [record["sql"] for record in found if record["operation"] == "claim"]
    assert ["UPDATE orders SET "] == [sql[:18] for sql in claims]
    assert not any(record["operation"].startswith("publish") for record in found)


def test_the_statements_where_a_claim_frees_the_key(sqlite_url: str) -> None:
    """A publish looks for messages that came back, inserts, and takes keys from claimed ones."""
    succeed("create", "jobs", "--unique", "waiting", url=sqlite_url)
    assert "waiting" == succeed("list", "--json", url=sqlite_url).records[0]["unique"]
    found = succeed("sql", "jobs", "publish", "--json", url=sqlite_url).records
    of = {
        name: [each["sql"] for each in found if each["operation"] == name]
        for name in ("publish, key", "publish, replace")
    }
    assert "ON CONFLICT (message_key, key_released)" in of["publish, key"][-1]
    assert any("key_released != " in sql for sql in of["publish, key"])
    assert any(
        sql.startswith("UPDATE queue_jobs SET key_released=") for sql in of["publish, replace"]
    )
