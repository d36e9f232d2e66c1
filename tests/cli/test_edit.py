"""`edit`: an operator changes unclaimed messages and sees how many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text

from queue_over_sql import ClaimLost, Queue
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import on_terminal, run, succeed
from tests.contract.queue_state import close
from tests.contract.queues.edits import publish_kinds, refuse_changes_of

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def _edit(url: str, kind: str, *action: str) -> tuple[str, int, int]:
    options = ("--kind", kind, *action, "--yes", "--json")
    done = succeed("edit", "jobs", *options, url=url).record
    return done["action"], done["changed"], done["skipped"]


def test_when_messages_are_due(database: TestDatabase, make_service: MakeService) -> None:
    """Hold, unhold, delay and at, each by its filter, on every engine."""
    queue, url = make_service().create_queue("jobs"), database.url
    publish_kinds(queue, ["a", "b", "c"])
    assert ("hold", 1, 0) == _edit(url, "a", "--hold")
    assert ["a"] == [message.kind for message in queue.messages(status="held").list()]
    assert ("unhold", 1, 0) == _edit(url, "a", "--unhold")
    assert ("delay", 1, 0) == _edit(url, "b", "--delay", "1h")
    assert ("at", 1, 0) == _edit(url, "c", "--at", "2040-01-31T09:00:00+01:00")
    b, c = queue.messages(status="delayed").list()
    assert close(b.available_at, datetime.now(UTC) + timedelta(hours=1), 120)
    assert datetime(2040, 1, 31, 8, tzinfo=UTC) == c.available_at
    assert ["a"] == [message.kind for message in queue.consume(3)]


def test_which_messages_come_first(database: TestDatabase, make_service: MakeService) -> None:
    """Priority, front and remove, each by its filter, on every engine."""
    queue, url = make_service().create_queue("jobs", priorities=3), database.url
    publish_kinds(queue, ["a", "b", "c", "d"], priority=1)
    assert ("priority", 1, 0) == _edit(url, "c", "--priority", "0")
    assert ("front", 1, 0) == _edit(url, "d", "--front")
    assert ("remove", 1, 0) == _edit(url, "b", "--remove")
    assert ["c", "d", "a"] == [message.kind for message in queue.consume(4)]


def test_what_a_consumer_holds_is_left_alone(
    database: TestDatabase, make_service: MakeService
) -> None:
    """It is counted, people are told, and code 5 tells scripts; its holder can still ack it."""
    queue = make_service().create_queue("jobs")
    queue.publish_many([1, 2, 3])
    [held] = queue.consume()
    asked = run("edit", "jobs", "--all", "--hold", url=database.url, stdin="y\n")
    assert 5 == asked.exit_code
    assert "Hold 2 messages of queue jobs (1 claimed one is skipped)?" in asked.err
    assert "Held 2 messages of queue jobs; 1 claimed one is skipped." == asked.out.strip()
    removed = run("edit", "jobs", "--all", "--remove", "--yes", "--json", url=database.url)
    assert 5 == removed.exit_code
    assert {"queue": "jobs", "action": "remove", "changed": 2, "skipped": 1} == removed.record
    held.ack()


def test_only_held_messages_are_unheld(sqlite_url: str, jobs: Queue) -> None:
    """Delivery of the others is not touched, and the claimed ones do not count."""
    jobs.publish_many([1, 2])
    jobs.publish(3, delay=3600)
    jobs.consume()
    succeed("edit", "jobs", "--where", "id = 2", "--hold", "--yes", url=sqlite_url)
    ended = run("edit", "jobs", "--all", "--unhold", url=sqlite_url, stdin="y\n")
    assert 0 == ended.exit_code
    assert "Unhold 1 message of queue jobs?" in ended.err
    assert "Unheld 1 message of queue jobs." == ended.out.strip()


def test_nothing_is_changed_without_a_yes(sqlite_url: str) -> None:
    """A no, or nobody there to ask: code 1, and the messages are as they were."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", url=sqlite_url)
    question = "Remove 1 message of queue jobs permanently?"
    for answer in ("n\n", ""):
        ended = run("edit", "jobs", "--all", "--remove", url=sqlite_url, stdin=answer)
        assert 1 == ended.exit_code, answer
        assert question in ended.err, answer
    assert 1 == succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"]


def test_what_is_not_clear_is_not_done(sqlite_url: str) -> None:
    """No choice of messages, no action or two, a value that cannot be: code 2, nothing changed."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", url=sqlite_url)
    wrong = {
        ("--hold",): "--all",
        ("--all", "--key", "k", "--hold"): "not both",
        ("--all",): "exactly one",
        ("--all", "--hold", "--front"): "exactly one",
        ("--all", "--delay", "1h", "--at", "2040-01-01T00:00:00Z"): "exactly one",
        ("--all", "--at", "2040-01-01T00:00:00"): "time zone",
        ("--all", "--priority", "9", "--yes"): "priority",
        ("--status", "lost", "--unhold"): "'held'",
    }
    for options, said in wrong.items():
        ended = run("edit", "jobs", *options, url=sqlite_url, stdin="y\n")
        assert 2 == ended.exit_code, options
        assert "" == ended.out, options
        assert said in ended.err, options
    assert 1 == succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"]


def test_no_such_message_is_code_3(sqlite_url: str) -> None:
    """Asked for or not; a script that reads JSON gets its record all the same."""
    succeed("create", "jobs", url=sqlite_url)
    asked = run("edit", "jobs", "--key", "k", "--hold", url=sqlite_url)
    told = run("edit", "jobs", "--key", "k", "--hold", "--yes", "--json", url=sqlite_url)
    assert 3 == asked.exit_code
    assert "" == asked.out
    assert "No message in queue jobs matches.\n" == asked.err
    assert 3 == told.exit_code
    assert 0 == told.record["changed"]


def test_removing_many_shows_how_far_it_is(sqlite_url: str) -> None:
    """On a terminal there is a bar that ends at the number of messages; in a pipe there is none."""
    succeed("create", "jobs", url=sqlite_url)
    remove = ("edit", "jobs", "--all", "--remove", "--yes")
    succeed("publish", "jobs", url=sqlite_url, stdin="1\n" * 1200)
    code, shown = on_terminal(*remove, url=sqlite_url)
    report = "Removed 1,200 messages of queue jobs permanently."
    assert 0 == code
    assert "1200/1200" in shown
    assert report in shown
    succeed("publish", "jobs", url=sqlite_url, stdin="1\n" * 1200)
    piped = succeed(*remove, url=sqlite_url)
    assert f"{report}\n" == piped.out
    assert "" == piped.err


def test_rows_of_an_existing_table_stay(sqlite_url: str) -> None:
    """Its messages are searched by their columns; removing them says that the rows stay."""
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (id INTEGER PRIMARY KEY, city TEXT)"))
        connection.execute(text("INSERT INTO invoices (city) VALUES ('Zagreb'), ('Split')"))
    succeed("adopt", "jobs", "invoices", "--enqueue", url=sqlite_url)
    chosen = ("--where", "city = 'Split'")
    assert [2] == [
        m["id"] for m in succeed("search", "jobs", *chosen, "--json", url=sqlite_url).records
    ]
    ended = succeed("edit", "jobs", *chosen, "--remove", "--yes", url=sqlite_url)
    assert "Removed 1 message of queue jobs (the rows stay in the table).\n" == ended.out
    assert 1 == succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"]
    with engine.connect() as connection:
        assert 2 == connection.execute(text("SELECT COUNT(*) FROM invoices")).scalar_one()
    engine.dispose()
    edited = run("requeue", "jobs", "--all", "--edit", "--yes", url=sqlite_url)
    assert 2 == edited.exit_code
    assert "change the row in its table" in edited.err


def test_cancelling(database: TestDatabase, make_service: MakeService) -> None:
    """Waiting and claimed messages end with the reason; what is not there is said; it asks."""
    queue, url = make_service().create_queue("jobs"), database.url
    claimed, waiting = (published.id for published in queue.publish_many(["a", "b"]))
    [held] = queue.consume()

    refused = run("cancel", "jobs", str(claimed), url=url, stdin="n\n")
    assert 1 == refused.exit_code
    assert "Cancel 1 message of queue jobs?" in refused.err
    done = run("cancel", "jobs", str(claimed), "999", "--reason", "no", "--yes", url=url)
    assert 5 == done.exit_code
    assert "Cancelled 1 message of queue jobs. Not found: 999." == done.out.strip()
    with pytest.raises(ClaimLost):
        held.ack()
    found = succeed("cancel", "jobs", str(waiting), "--yes", "--json", url=url).record
    assert {"queue": "jobs", "cancelled": [waiting], "missing": []} == found
    reasons = [message.last_error for message in queue.archive.messages(status="rejected").list()]
    assert ["cancelled by operator: no", "cancelled by operator"] == reasons
    assert 3 == run("cancel", "jobs", "999", "--yes", url=url).exit_code


def test_a_cancel_that_ends_halfway_says_so(sqlite_url: str) -> None:
    """What is no id is found before anything is done; another error comes with a count."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", url=sqlite_url, stdin="1\n2\n3\n4\n")
    no_id = run("cancel", "jobs", "1", "99999999999999999999", "--yes", url=sqlite_url)
    assert 2 == no_id.exit_code
    assert "is not the id of a message" in " ".join(no_id.err.split())
    refuse_changes_of(3, sqlite_url)
    halfway = run("cancel", "jobs", "1", "2", "3", "4", "--yes", url=sqlite_url)
    assert 1 == halfway.exit_code
    assert halfway.err.startswith("2 messages done before the error.\n"), halfway.err
    left = succeed("peek", "jobs", "--json", url=sqlite_url).records
    assert [3, 4] == [each["id"] for each in left]
