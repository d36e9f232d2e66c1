"""`search`: as `peek`, filtered by payload fields and SQL conditions."""

from __future__ import annotations

import os

import pytest

from queue_over_sql import Publication, Queue
from queue_over_sql.queue import core_of
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import Ended, run, succeed
from tests.contract.queue_state import has_json_paths

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

ORDERS = [
    {"n": 1, "address": {"city": "Zagreb"}, "zip": "123", "items": [{"sku": "a"}]},
    {"n": 2, "address": {"city": "Split"}, "zip": 123, "items": [{"sku": "b"}]},
    {"n": 3, "address": {"city": "Zagreb"}, "zip": None, "items": []},
]


def _orders(make_service: MakeService) -> Queue:
    queue = make_service().create_queue("orders", archive="all")
    queue.publish_many([Publication(order, kind=f"kind-{order['n']}") for order in ORDERS])
    return queue


def _numbers(ended: Ended) -> list[int]:
    return [message["payload"]["n"] for message in ended.records]


def test_fields_of_the_payload(database: TestDatabase, make_service: MakeService) -> None:
    """Paths into objects and lists; JSON values where they are, text otherwise; all must match.

    H2 before 2.2.220 cannot look into payloads, and says so.
    """
    queue = _orders(make_service)
    if not has_json_paths(core_of(queue).context.connections.engine):
        refused = run("search", "orders", "--payload", "n=1", url=database.url)
        assert 1 == refused.exit_code
        assert "2.2.220" in refused.err
        return
    found = [
        _numbers(run("search", "orders", "--json", *options, url=database.url))
        for options in (
            ("--payload", "address.city=Zagreb"),
            ("--payload", "address.city=Zagreb", "--payload", "n=3"),
            ("--payload", "zip=123"),
            ("--payload", 'zip="123"'),
            ("--payload", "items.0.sku=b"),
        )
    ]
    assert [[1, 3], [3], [2], [1], [2]] == found


def test_sql_conditions(database: TestDatabase, make_service: MakeService) -> None:
    """Any SQL on the columns, whatever characters are in it, also together with other filters."""
    _orders(make_service)
    conditions = (
        "kind = 'kind-2'",
        "kind like 'kind%' and id > 1",
        "kind = 'x' or 1 = 1 -- and so on",
        "kind <> ' :name' and kind <> '100%' and kind <> '?' and kind <> '%s'",
    )
    found = [
        _numbers(run("search", "orders", "--json", "--where", sql, url=database.url))
        for sql in conditions
    ]
    assert [[2], [2, 3], [1, 2, 3], [1, 2, 3]] == found
    both = ("--where", "1 = 1 or 1 = 2", "--kind", "kind-3")
    assert [3] == _numbers(run("search", "orders", "--json", *both, url=database.url))


def test_sql_that_is_refused(database: TestDatabase, make_service: MakeService) -> None:
    """An unknown column and a syntax error: code 1 and one message that names the option."""
    make_service().create_queue("orders")
    for condition in ("nonsense > 1", "id >"):
        ended = run("search", "orders", "--where", condition, url=database.url)
        assert 1 == ended.exit_code, condition
        assert "" == ended.out, condition
        assert "refused" in ended.err, condition
        assert "--where" in ended.err, condition
        assert "Traceback" not in ended.err, condition


def test_count_and_pages(sqlite_url: str) -> None:
    """--count counts what is on all pages; --limit and --after turn them."""
    succeed("create", "orders", url=sqlite_url)
    succeed("publish", "orders", url=sqlite_url, stdin="1\n" * 30)
    search = ("search", "orders", "--where", "id > 5")
    first = succeed(*search, "--json", url=sqlite_url).records
    last = str(first[-1]["id"])
    second = succeed(*search, "--after", last, "--limit", "3", "--json", url=sqlite_url).records
    assert [*range(6, 26)] == [message["id"] for message in first]
    assert [26, 27, 28] == [message["id"] for message in second]
    counted = succeed(*search, "--count", "--json", url=sqlite_url).record
    assert "25\n" == succeed(*search, "--count", url=sqlite_url).out
    assert {"queue": "orders", "count": 25} == counted


def test_nothing_found_is_code_3(sqlite_url: str) -> None:
    """Scripts can tell an empty answer from a full one, also of --count."""
    succeed("create", "orders", url=sqlite_url)
    found, counted = (
        run("search", "orders", "--kind", "x", *option, url=sqlite_url)
        for option in ((), ("--count",))
    )
    assert [(3, ""), (3, "0\n")] == [(ended.exit_code, ended.out) for ended in (found, counted)]


def test_the_archive_is_searched_alike(sqlite_url: str) -> None:
    """--archive finds finished messages by the same filters; people see how each ended."""
    succeed("create", "orders", "--max-attempts", "1", url=sqlite_url)
    succeed("publish", "orders", url=sqlite_url, stdin='{"n":1}\n{"n":2}\n')
    run("consume", "orders", "--count", "2", "--exec", "exit 1", url=sqlite_url)
    search = ("search", "orders", "--archive", "--status", "failed", "--payload", "n=2")
    head, row = succeed(*search, url=sqlite_url).out.splitlines()
    assert "outcome" in head
    assert "failed" in row
    assert '{"n":2}' in row
    assert [2] == _numbers(succeed(*search, "--json", url=sqlite_url))


def test_kinds_are_shown_where_there_are_some(sqlite_url: str) -> None:
    """A column for kinds takes room only where a message has one."""
    succeed("create", "orders", url=sqlite_url)
    succeed("publish", "orders", "1", url=sqlite_url)
    without, *_ = succeed("search", "orders", url=sqlite_url).out.splitlines()
    succeed("publish", "orders", "2", "--kind", "invoice", url=sqlite_url)
    head, _, row = succeed("search", "orders", url=sqlite_url).out.splitlines()
    assert "kind" not in without
    assert "kind" in head
    assert "invoice" in row


def test_filters_that_mean_nothing(sqlite_url: str) -> None:
    """Wrong usage, code 2, and a text that says what would be right."""
    succeed("create", "orders", url=sqlite_url)
    wrong = {
        ("--payload", "n"): "NAME=VALUE",
        ("--payload", "n=1", "--payload", "n=2"): "more than once",
        ("--payload", "a..b=1"): "a..b",
        ("--payload", "a=[1]"): "one by one",
        ("--status", "done"): "ready",
        ("--archive", "--status", "ready"): "done",
    }
    for options, said in wrong.items():
        ended = run("search", "orders", *options, url=sqlite_url)
        assert 2 == ended.exit_code, options
        assert "" == ended.out, options
        assert said in ended.err, options


def test_a_queue_of_text_has_no_fields(sqlite_url: str) -> None:
    """--payload on it is refused, naming what it holds."""
    succeed("create", "notes", "--payload", "text", url=sqlite_url)
    ended = run("search", "notes", "--payload", "n=1", url=sqlite_url)
    assert 2 == ended.exit_code
    assert "'text'" in ended.err


@pytest.mark.engines("sqlite")
def test_show_tells_what_happened_to_a_message(
    database: TestDatabase, make_service: MakeService
) -> None:
    """From publishing to what comes next: failures, the holder by its name, and the end."""
    service = make_service(consumer_name="mailer")
    queue = service.create_queue("jobs", max_attempts=2)
    waiting = queue.publish("x", key="k").id
    queue.consume()[0].nack("mail server down", delay=3600)
    held = queue.publish("y").id
    queue.messages(where=queue.table.c.id == held).hold()
    for number, story in (
        (waiting, ["published", "attempt 1 of 2 failed: mail server down", "due"]),
        (held, ["published", "held until"]),
    ):
        shown = succeed("show", "jobs", str(number), url=database.url).out
        events = [line[21:] for line in shown.split("\n\n")[1].splitlines()]
        assert all(map(str.startswith, events, story)), shown
        assert len(story) == len(events)
    queue.messages(key="k").reschedule(delay=0)
    [claimed] = queue.consume()
    by = f"claimed for attempt 2 of 2 by mailer (process {os.getpid()}"
    assert by in succeed("show", "jobs", str(waiting), url=database.url).out
    record = succeed("show", "jobs", str(waiting), "--json", url=database.url).record
    assert "claimed" == record["status"]
    assert "mailer" == record["consumer"]["name"]
    claimed.release()
    [claimed] = queue.consume(hold_for=60)
    by = "claimed for attempt 2 of 2 by held-claims (any process)"
    assert by in succeed("show", "jobs", str(waiting), url=database.url).out
    claimed.reject("no address")
    dead = succeed("show", "jobs", str(waiting), url=database.url).out
    assert "rejected at attempt 2 of 2: no address" in dead
    queue.archive.messages().requeue()
    [again] = queue.messages(key="k").list()
    gone = run("show", "jobs", str(waiting), url=database.url)
    assert 3 == gone.exit_code
    assert f"requeued with the new id {again.id}." in gone.err
    told = succeed("show", "jobs", str(again.id), url=database.url).out
    assert f"published again: requeued from message {waiting} after a failure: no address" in told
    # The attempts before came before.
    assert told.index("attempt 2 of 2 rejected: no address") < told.index("published again")
    for missing in ("99", "0"):
        assert 3 == run("show", "jobs", missing, url=database.url).exit_code
    assert 3 == run("show", "jobs", "--", "-5", url=database.url).exit_code


def test_why_says_the_reason(database: TestDatabase, make_service: MakeService) -> None:
    """As a sentence or as JSON, with the consumer that has it; exit code 3 if there is none."""
    service = make_service(consumer_name="mailer")
    queue = service.create_queue("jobs")
    number = str(queue.publish("x").id)
    asked = ("why", "jobs", number)
    assert "No consumer is alive." in succeed(*asked, url=database.url).out
    [message] = queue.consume()
    assert "Consumer mailer (process " in succeed(*asked, url=database.url).out
    record = succeed(*asked, "--json", url=database.url).record
    assert "claimed" == record["reason"]
    assert "mailer" == record["consumer"]["name"]
    message.release()
    assert 1 == succeed(*asked, "--json", url=database.url).record["position"]
    missing = run("why", "jobs", "99", url=database.url)
    assert 3 == missing.exit_code
    assert "Queue jobs has no message 99." in missing.err


def test_a_guessed_status_of_dead_letters_is_explained(sqlite_url: str) -> None:
    """The error lists the values, and says which ones mean dead letters."""
    succeed("create", "jobs", url=sqlite_url)
    for arguments in (("peek", "jobs"), ("requeue", "jobs", "--yes")):
        ended = run(*arguments, "--status", "dead", url=sqlite_url)
        assert 2 == ended.exit_code
        assert "--status must be one of" in ended.err
        assert "Dead letters are in the archive: failed, rejected and expired" in ended.err
    ended = run("requeue", "jobs", "--yes", "--status", "held", url=sqlite_url)
    assert "Messages that are held are in the queue, not in the archive" in ended.err
