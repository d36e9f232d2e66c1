"""The commands `topic`, `subscribe` and `unsubscribe`."""

from __future__ import annotations

import pytest

from queue_over_sql.testing.plugin import TestDatabase
from tests.cli.command_line import run, succeed

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def prepared(url: str) -> None:
    """A topic and two queues, of which one has subscribed."""
    for queue in ("bills", "mails"):
        succeed("create", queue, url=url)
    succeed("topic", "create", "orders", url=url)
    succeed("subscribe", "orders", "bills", "--pattern", "*.paid", url=url)


def test_a_message_travels_to_its_subscribers(database: TestDatabase) -> None:
    """Pattern and filter decide on every engine; each copy is reported and is in its queue."""
    prepared(database.url)
    filters = ("--where", "country=HR", "--where", "items.0.n=7")
    succeed("subscribe", "orders", "mails", *filters, url=database.url)
    payload = '{"country": "HR", "items": [{"n": 7}]}'
    options = ("--routing-key", "eu.paid", "--json")
    both = succeed("topic", "publish", "orders", payload, *options, url=database.url).records
    one = succeed("topic", "publish", "orders", "{}", *options, url=database.url).records
    assert [("orders", "bills"), ("orders", "mails")] == [(r["topic"], r["queue"]) for r in both]
    assert ["bills"] == [record["queue"] for record in one]
    [message] = succeed("peek", "mails", "--json", url=database.url).records
    assert both[1]["id"] == message["id"]
    assert {"topic": "orders", "routing_key": "eu.paid"} == message["headers"]


def test_a_message_with_its_options(sqlite_url: str) -> None:
    """Key, kind, headers and delay arrive; a plain text is said to be one."""
    prepared(sqlite_url)
    given = ("--key", "k", "--kind", "note", "-H", "trace=abc", "--delay", "1h", "--text")
    told = succeed("topic", "publish", "orders", "hi", "-r", "eu.paid", *given, url=sqlite_url).out
    [message] = succeed("peek", "bills", "--json", "--status", "delayed", url=sqlite_url).records
    assert "hi" == message["payload"]
    assert "k" == message["key"]
    assert "note" == message["kind"]
    assert "abc" == message["headers"]["trace"]
    assert f"Published to 1 queue: bills (message {message['id']} created).\n" == told
    again = run("topic", "publish", "orders", "1", "-r", "eu.paid", "--key", "k", url=sqlite_url)
    assert 1 == again.exit_code
    assert "already" in again.err
    skip = ("--key", "k", "--on-conflict", "skip", "--json")
    skipped = succeed("topic", "publish", "orders", "1", "-r", "a.paid", *skip, url=sqlite_url)
    assert "skipped" == skipped.record["outcome"]


def test_a_pipe_gets_a_result_as_one_line(sqlite_url: str) -> None:
    """However long it is, and however wide the terminal is said to be."""
    prepared(sqlite_url)
    for number in range(5):
        succeed("create", f"copies_{number}", url=sqlite_url)
        succeed("subscribe", "orders", f"copies_{number}", url=sqlite_url)
    publish = ("topic", "publish", "orders", "{}", "--routing-key", "paid.not")
    [line] = succeed(*publish, url=sqlite_url).out.splitlines()
    assert len(line) > 100


def test_nobody_subscribed_to_that(sqlite_url: str) -> None:
    """No error: the words say so, and for a machine there is no line."""
    prepared(sqlite_url)
    words = succeed("topic", "publish", "orders", "1", "-r", "eu.sent", url=sqlite_url).out
    lines = succeed("topic", "publish", "orders", "1", "-r", "", "--json", url=sqlite_url).out
    assert "No subscription to topic orders matches: nothing was published.\n" == words
    assert "" == lines


def test_topics_are_listed_and_shown(sqlite_url: str) -> None:
    """With their subscriptions; exit code 3 where there is nothing."""
    assert 3 == run("topic", "list", url=sqlite_url).exit_code
    prepared(sqlite_url)
    succeed("topic", "create", "empty", url=sqlite_url)
    succeed("subscribe", "orders", "mails", "--where", "n=1", url=sqlite_url)
    listed = succeed("topic", "list", "--json", url=sqlite_url).records
    assert [("empty", 0), ("orders", 2)] == [(r["topic"], r["subscriptions"]) for r in listed]
    shown = succeed("topic", "show", "orders", "--json", url=sqlite_url).records
    assert [("bills", "*.paid", None), ("mails", "#", {"n": 1})] == [
        (record["queue"], record["pattern"], record["where"]) for record in shown
    ]
    people = succeed("topic", "show", "orders", url=sqlite_url).out
    assert all(word in people for word in ("bills", "*.paid", "mails", '{"n":1}'))
    assert "orders" in succeed("topic", "list", url=sqlite_url).out
    assert 3 == run("topic", "show", "empty", url=sqlite_url).exit_code


def test_unsubscribing(sqlite_url: str) -> None:
    """One pattern or all of a queue; exit code 3 where there was none."""
    prepared(sqlite_url)
    for pattern in ("a", "b"):
        succeed("subscribe", "orders", "mails", "--pattern", pattern, url=sqlite_url)
    succeed("unsubscribe", "orders", "mails", "--pattern", "a", url=sqlite_url)
    left = succeed("topic", "show", "orders", "--json", url=sqlite_url).records
    assert ["*.paid", "b"] == [record["pattern"] for record in left]
    succeed("unsubscribe", "orders", "mails", url=sqlite_url)
    again = run("unsubscribe", "orders", "mails", url=sqlite_url)
    assert 3 == again.exit_code
    assert "no such subscription" in again.err


def test_dropping_asks_and_leaves_the_queues(sqlite_url: str) -> None:
    """Without a yes nothing is dropped; what the queues hold stays."""
    prepared(sqlite_url)
    succeed("topic", "publish", "orders", "1", "-r", "eu.paid", url=sqlite_url)
    refused = run("topic", "drop", "orders", url=sqlite_url)
    assert 1 == refused.exit_code
    assert "1 subscription?" in refused.err
    succeed("topic", "drop", "orders", "--yes", url=sqlite_url)
    gone = run("topic", "drop", "orders", "--yes", url=sqlite_url)
    assert 3 == gone.exit_code
    assert "no topic 'orders'" in gone.err
    assert "1\n" == succeed("consume", "bills", url=sqlite_url).out


def test_wrong_usage_is_explained(sqlite_url: str) -> None:
    """Exit code 2 for what cannot be right, 3 for what is not there; never a traceback."""
    prepared(sqlite_url)
    wrong = {
        ("topic", "publish", "orders", "1"): (2, "--routing-key"),
        ("topic", "publish", "orders", "hello", "-r", "x"): (2, "--text"),
        ("topic", "publish", "orders", "1", "-r", "x" * 256): (2, "--routing-key"),
        ("topic", "publish", "none", "1", "-r", "x"): (3, "none"),
        ("topic", "create", "No"): (1, "topic"),
        ("subscribe", "orders", "none"): (3, "none"),
        ("subscribe", "none", "bills"): (3, "none"),
        ("subscribe", "orders", "bills", "--where", "n"): (2, "NAME=VALUE"),
        ("subscribe", "orders", "bills", "--where", "n=1", "--where", "n=2"): (2, "once"),
        ("subscribe", "orders", "bills", "--where", "a..b=1"): (2, "a..b"),
        ("unsubscribe", "none", "bills"): (3, "none"),
    }
    for arguments, (code, words) in wrong.items():
        ended = run(*arguments, url=sqlite_url)
        assert code == ended.exit_code, (arguments, ended.err)
        assert words in ended.err, (arguments, ended.err)
        assert "Traceback" not in ended.err, (arguments, ended.err)
