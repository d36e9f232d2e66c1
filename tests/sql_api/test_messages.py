"""The SQL API publishes and claims as the library: order, priorities, delays, payloads, pause."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Engine, LargeBinary, String
from sqlalchemy.exc import DBAPIError

from queue_over_sql import QueueService
from queue_over_sql.values.durations import instant
from queue_over_sql.values.reasons import not_started_within
from tests.contract.queue_state import set_columns
from tests.sql_api.conftest import MakeClient
from tests.sql_api.sql_clients import PAYLOAD, UNKNOWN, WRONG, SqlClient, refusal
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.engines("postgresql", "mariadb", "mysql"),
    pytest.mark.usefixtures("functions_allowed"),
]


def test_what_is_put_is_what_the_library_consumes(
    installed: QueueService, client: SqlClient
) -> None:
    """A message of a SQL client reaches Python with its payload, limits and times."""
    message_id = client.put('{"to": "é", "n": [1, 2.5, null]}', 3, 7.5)
    [message] = installed.queue("jobs").consume()
    assert message_id == message.id
    assert {"to": "é", "n": [1, 2.5, None]} == message.payload
    assert 1 == message.attempt
    assert 3 == message.max_attempts
    assert message.lease_expires_at is not None
    assert message.claimed_at is not None
    assert timedelta(seconds=7.5) == message.lease_expires_at - message.claimed_at
    message.ack()


def test_the_trace_of_the_session_travels_along(installed: QueueService, client: SqlClient) -> None:
    """As the header ``traceparent``, unless it is none; another session has its own."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    postgresql = client.connection.dialect.name == "postgresql"
    variable = "queue_over_sql.traceparent" if postgresql else "@queue_over_sql_traceparent"
    queue = installed.queue("jobs")
    for given, headers in (
        (trace, {"traceparent": trace}),
        ('x"}', {}),
        ("", {}),
    ):
        client.rows(f"SET {variable} = '{given}'")
        client.put("1")
        client.put_all("[2]")
        assert [headers, headers] == [message.headers for message in queue.consume(2)], given


def test_what_the_library_publishes_is_what_is_got(
    installed: QueueService, client: SqlClient
) -> None:
    """A message of Python reaches a SQL client with all that it has; its kind as it was given."""
    queue = installed.queue("jobs")
    published = queue.publish({"a": "ü"}, key="k", kind="Order", headers={"h": 1}, max_attempts=9)
    before = datetime.now(UTC) - timedelta(minutes=5)
    got = client.must_get()
    assert published.id == got["id"]
    assert {"a": "ü"} == json.loads(got["payload"])
    assert "Order" == got["kind"]
    assert {"h": 1} == json.loads(got["headers"])
    assert "k" == got["message_key"]
    assert 0 == got["priority"]
    assert 1 == got["read_cnt"]
    assert 9 == got["max_read_cnt"]
    created, expires = (_aware(got[name]) for name in ("created_at", "next_read"))
    assert before < created < before + timedelta(minutes=10)
    assert timedelta(seconds=299) < expires - created < timedelta(seconds=420)
    [listed] = queue.messages(status="claimed").list()
    assert 1 == listed.attempt


def _aware(value: Any) -> datetime:
    """An instant: engines without time zones give UTC."""
    instant = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def test_zero_reads_are_no_limit_and_null_is_the_queues(
    installed: QueueService, client: SqlClient
) -> None:
    """``max_read_cnt`` and ``invisibility_time`` of zero or NULL."""
    for read_cnt, lease in ((0, 0), (None, None), (1, 0.25)):
        client.put("1", read_cnt, lease)
    found = installed.queue("jobs").consume(3)
    assert [2**31 - 1, 5, 1] == [message.max_attempts for message in found]
    lengths = [
        m.lease_expires_at - m.claimed_at for m in found if m.lease_expires_at and m.claimed_at
    ]
    assert [300.0, 300.0, 0.25] == [length.total_seconds() for length in lengths]


def test_the_oldest_come_first_and_priority_by_priority(
    installed: QueueService, client: SqlClient
) -> None:
    """Promise 4, across levels, also where a batch takes from several."""
    queue = installed.create_queue("jobs", priorities=3)
    for number, priority in enumerate((2, 0, 1, 0, 2)):
        queue.publish(number, priority=priority)
    queue.publish("later", delay=3600)
    assert ["1", "3", "2"] == [row["payload"] for row in client.get_many(3)]
    assert ["0", "4"] == [row["payload"] for row in client.get_many(10)]
    assert client.get() is None


def test_delayed_and_held_messages_wait(installed: QueueService, client: SqlClient) -> None:
    """Only what is due is given out, by the clock of the server."""
    queue = installed.queue("jobs")
    queue.publish("held")
    queue.messages().hold()
    queue.publish("later", delay=3600)
    assert client.get() is None
    queue.messages(status="delayed").reschedule(delay=0.05)
    wait_until(lambda: client.get() is not None)
    assert client.get() is None


def test_a_paused_queue_gives_nothing(installed: QueueService, client: SqlClient) -> None:
    """Pause and resume hold for the very next call."""
    queue = installed.queue("jobs")
    client.put("1")
    queue.pause()
    assert client.get() is None
    queue.resume()
    assert client.get() is not None


def test_a_batch_is_put_in_its_order(installed: QueueService, client: SqlClient) -> None:
    """All ids come back, in the order of the payloads, and so do the messages."""
    ids = client.put_all('[{"n": 1}, "two", 3, null, [4]]')
    assert sorted(ids) == ids
    found = installed.queue("jobs").consume(10)
    assert ids == [message.id for message in found]
    assert [{"n": 1}, "two", 3, None, [4]] == [message.payload for message in found]
    assert [] == client.put_all("[]")


def test_whole_numbers_of_a_batch_are_kept_or_refused(
    installed: QueueService, client: SqlClient
) -> None:
    """MySQL would round those of more than 64 bits; in a string digits are only text."""
    kept = [2**63, 2**64 - 1, -(2**63), 0.5, '"\\' + "9" * 30, {"9" * 30: 0.5}]
    client.put_all(json.dumps([*kept, 7]))
    for large in (2**64, 10**25, -(2**63) - 1):
        batch = json.dumps([1, {"n": [large]}])
        if client.connection.dialect.name != "mysql":
            client.put_all(batch)
            kept += [1, {"n": [large]}]
        else:
            with pytest.raises(DBAPIError) as caught:
                client.put_all(batch)
            assert PAYLOAD == refusal(caught.value), large
            client.put(json.dumps(large))
            kept.append(large)
    kept.insert(6, 7)
    found = installed.queue("jobs").consume(20)
    assert json.dumps(kept) == json.dumps([message.payload for message in found])


def test_texts_and_bytes(installed: QueueService, client: SqlClient) -> None:
    """Text goes as it is, bytes as base64, both ways and in batches."""
    texts = installed.create_queue("texts", payload="text")
    raw = installed.create_queue("raw", payload="bytes")
    installed.sql_api.install()
    content = bytes(range(256))
    client.put("plain 'ü'\n", queue="texts")
    client.put_all('["one", "two"]', queue="texts")
    client.put(base64.b64encode(content).decode(), queue="raw")
    assert ["plain 'ü'\n", "one", "two"] == [message.payload for message in texts.consume(3)]
    got = client.must_get("raw")
    assert "\n" not in got["payload"]
    assert content == base64.b64decode(got["payload"])
    client.settle("release", got, queue="raw")
    assert [content] == [message.payload for message in raw.consume()]


def test_own_columns_are_shown_and_archived(
    installed: QueueService, make_client: MakeClient
) -> None:
    """A message carries the columns of its queue to the client, and into the archive."""
    columns: list[Column[Any]] = [Column("city", String(20)), Column("token", LargeBinary(8))]
    queue = installed.create_queue("trips", archive="all", columns=columns)
    installed.sql_api.install()
    client = make_client()
    queue.publish(1, columns={"city": "Zürich", "token": b"\x00\xff"})
    got = client.rows(
        "SELECT * FROM get_message_from_queue('trips')"
        if client.connection.dialect.name == "postgresql"
        else "CALL get_message_from_queue('trips')"
    )[0]
    own = got.get("own_columns", got)
    assert "Zürich" == own["city"]
    client.delete(got["id"], queue="trips")
    [kept] = queue.archive.messages().list()
    assert {"city": "Zürich", "token": b"\x00\xff"} == dict(kept.columns)
    assert "done" == kept.outcome


def test_bad_input_is_refused(installed: QueueService, client: SqlClient) -> None:
    """A wrong argument is an error of its own kind, and nothing is put."""
    installed.create_queue("jobs", max_payload_bytes=1000)
    wrong: dict[tuple[Any, ...], str] = {
        (None, 0, 0): PAYLOAD,
        ('"' + "x" * 2_000 + '"', 0, 0): PAYLOAD,
        ("1", -1, 0): WRONG,
        ("1", 2**31, 0): WRONG,
        ("1", 0, -1): WRONG,
        ("1", 0, 10**12): WRONG,
    }
    for arguments, expected in wrong.items():
        with pytest.raises(DBAPIError) as caught:
            client.put(*arguments)
        assert expected == refusal(caught.value), arguments
    assert 0 == installed.queue("jobs").stats().ready


def test_what_is_no_json_is_refused(installed: QueueService, client: SqlClient) -> None:
    """Neither a broken payload nor a batch that is no array gets in; the error has its code."""
    for broken in ("{", "", "nope", "'x'"):
        with pytest.raises(DBAPIError) as caught:
            client.put(broken)
        assert PAYLOAD == refusal(caught.value)
    for broken in ('{"a": 1}', "1", "["):
        for routine in ("put_messages_in_queue", "ack_messages"):
            with pytest.raises(DBAPIError) as caught:
                client.call(routine, "jobs", broken)
            assert WRONG == refusal(caught.value)
    for broken in (
        "[1]",
        '[{"id": 1}]',
        '[{"id": "x", "token": 1}]',
        '[{"id": "\\u0000", "token": 1}]',
    ):
        with pytest.raises(DBAPIError) as caught:
            client.call("ack_messages", "jobs", broken)
        assert WRONG == refusal(caught.value), broken
    for count in (0, -1, 1001, 2**40, None):
        with pytest.raises(DBAPIError) as caught:
            client.get_many(count)  # type: ignore[arg-type]
        assert WRONG == refusal(caught.value)
    assert 0 == installed.queue("jobs").stats().ready


def test_what_text_cannot_hold_is_refused(installed: QueueService, client: SqlClient) -> None:
    """A text queue says so of PostgreSQL, and any queue of what MySQL finds too deep."""
    installed.create_queue("notes", payload="text")
    installed.sql_api.install()
    if client.connection.dialect.name == "postgresql":
        for broken in (r'["\u0000"]', r'["\ud800"]'):
            with pytest.raises(DBAPIError) as caught:
                client.put_all(broken, queue="notes")
            assert PAYLOAD == refusal(caught.value), broken
    else:
        deep = "[" * 200 + "]" * 200
        for put, expected in ((client.put, PAYLOAD), (client.put_all, WRONG)):
            with pytest.raises(DBAPIError) as caught:
                put(deep)
            assert expected == refusal(caught.value)
    assert 0 == installed.queue("jobs").stats().ready + installed.queue("notes").stats().ready


def test_what_is_no_base64_is_refused(installed: QueueService, client: SqlClient) -> None:
    """A queue of bytes says so, with the code of a payload that does not fit."""
    installed.create_queue("raw", payload="bytes")
    installed.sql_api.install()
    with pytest.raises(DBAPIError) as caught:
        client.put("a!", queue="raw")
    assert PAYLOAD == refusal(caught.value)
    assert 0 == installed.queue("raw").stats().ready


def test_an_unknown_queue_is_an_error(client: SqlClient) -> None:
    """Nothing but the exact name of a queue reaches a table."""
    acts: list[tuple[str, list[Any]]] = [
        ("put_message_in_queue", ["1", 0, 0]),
        ("put_messages_in_queue", ["[1]"]),
        ("put_message_in_group", ["a", "1", 0, 0]),
        ("get_message_from_queue", []),
        ("get_messages_from_queue", [3]),
        ("delete_message_from_queue", [1]),
        ("ack_message", [1, 1]),
        ("ack_messages", ["[]"]),
        ("nack_message", [1, 1, "x", 0]),
        ("release_message", [1, 1]),
        ("reject_message", [1, 1, "x"]),
        ("extend_message", [1, 1, 1]),
    ]
    names = ["nope", "", "jobs'--", "JOBS", 'jobs" ; DROP TABLE queue_jobs', None]
    tried = [("nope", act) for act in acts] + [(name, act) for name in names for act in acts[:3]]
    for name, (routine, values) in tried:
        with pytest.raises(DBAPIError) as caught:
            client.call(routine, name, *values)
        assert UNKNOWN == refusal(caught.value), (routine, name)


def test_the_group_reaches_the_library(installed: QueueService, client: SqlClient) -> None:
    """A put may give a group; but messages with groups are not got in SQL, which kept no order."""
    for queue in ("jobs", "orders"):
        with pytest.raises(DBAPIError) as caught:
            client.call("put_message_in_group", queue, "a", "1", None, None)
        assert (WRONG if queue == "jobs" else UNKNOWN) == refusal(caught.value)
    orders = installed.create_queue("orders", group_limit=1, archive="all")
    if client.connection.dialect.name == "postgresql":
        client.call("put_message_in_group", "orders", "a", "0", None, None)
        orders.purge()
    installed.sql_api.install()
    groups = ["é", "e\u0301", "A", "a ", "", None, "x" * 200]
    for number, group in enumerate(groups):
        client.call("put_message_in_group", "orders", group, str(number), 3, 7.5)
    client.put(str(len(groups)), queue="orders")
    client.put_all(f"[{len(groups) + 1}]", queue="orders")
    found = [(message.payload, message.group) for message in orders.messages().list()]
    assert [*enumerate(groups), (len(groups), None), (len(groups) + 1, None)] == found
    with pytest.raises(DBAPIError) as caught:
        client.call("put_message_in_group", "orders", "x" * 201, "1", None, None)
    assert WRONG == refusal(caught.value)
    for get in (client.get, lambda queue: client.get_many(5, queue)):
        with pytest.raises(DBAPIError, match="groups") as caught:
            get("orders")
        assert WRONG == refusal(caught.value)
    assert len(groups) + 2 == orders.stats().ready


def test_limits_are_refused_where_sql_does_not_keep_them(
    installed: QueueService, client: SqlClient
) -> None:
    """No get from a queue with a limit or a rate, and no put that would look whether it is full."""
    jobs = installed.create_queue("jobs", queue_limit=1)
    client.put("1")
    with pytest.raises(DBAPIError, match="queue_limit") as caught:
        client.get()
    assert WRONG == refusal(caught.value)
    installed.create_queue("jobs", queue_limit=None, queue_rate="1/s")
    with pytest.raises(DBAPIError, match="queue_rate") as caught:
        client.get()
    assert WRONG == refusal(caught.value)
    installed.create_queue("jobs", queue_limit=1, when_full="reject")
    with pytest.raises(DBAPIError, match="when_full") as caught:
        client.put("2")
    assert WRONG == refusal(caught.value)
    assert 1 == jobs.stats().ready


def test_a_queue_over_a_table_of_the_users_is_not_served(
    installed: QueueService, client: SqlClient
) -> None:
    """Its messages have another shape, so the error says no instead of guessing."""
    client.rows("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    installed.adopt_queue("orders", "orders")
    installed.sql_api.install()
    with pytest.raises(DBAPIError) as caught:
        client.get("orders")
    assert UNKNOWN == refusal(caught.value)


@pytest.mark.default_on("postgresql", "mysql")
def test_sessions_at_once_get_each_message_once(
    installed: QueueService, make_client: MakeClient
) -> None:
    """Six sessions that get and acknowledge side by side: no message in two hands, none left."""
    queue = installed.queue("jobs")
    queue.load(range(240))
    clients = [make_client() for _ in range(6)]
    got: list[int] = []

    def drain(client: SqlClient, batch: int) -> None:
        while rows := client.get_many(batch):
            got.extend(row["id"] for row in rows)
            client.ack_all(rows)

    threads = [
        threading.Thread(target=drain, args=(client, 1 + number % 3))
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 240 == len(got)
    assert [] == [number for number, count in Counter(got).items() if count > 1]
    assert 240 == queue.stats().done


def test_a_claim_in_an_open_transaction_holds_nobody_up(
    client: SqlClient, make_client: MakeClient
) -> None:
    """Others skip what a transaction has claimed, put beside it, and get it once it rolled back."""
    client.put_all("[1, 2]")
    other = make_client(autocommit=False)
    assert "1" == other.must_get()["payload"]
    assert "2" == client.must_get()["payload"]
    other.connection.rollback()
    assert "1" == client.must_get()["payload"]


def test_what_expired_is_not_got_and_hides_nothing(
    installed: QueueService, client: SqlClient, engine: Engine
) -> None:
    """A SQL client's messages have the queue's expiry; its claim ends those that come too late."""
    queue = installed.create_queue("jobs", expires=3600)
    ids = [client.put(f'"{name}"') for name in ("late", "later", "in time")]
    by_id = {message.id: message for message in queue.messages().list()}
    for message in by_id.values():
        assert message.expires_at is not None
        assert timedelta(hours=1) == message.expires_at - message.published_at
    lengths = (3_600_000_000, 90_061_001_000)
    for late, length in zip(ids, lengths, strict=False):
        set_columns(engine, queue, late, published_at=0, expires_at=length)
    assert ['"in time"'] == [got[PAYLOAD] for got in client.get_many(2)]
    ended = list(queue.archive.messages(status="expired").list())
    assert ids[:2] == [message.id for message in ended]
    assert list(map(instant, lengths)) == [message.expires_at for message in ended]
    # As the library says it.
    assert list(map(not_started_within, lengths)) == [message.last_error for message in ended]
    assert "within 1 d 1 h 1 min 1 s 1 ms" in str(ended[1].last_error)
