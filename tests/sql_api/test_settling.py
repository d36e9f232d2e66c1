"""SQL clients settle messages: fenced, counted and archived as in the library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, case, column, table, update
from sqlalchemy.exc import DBAPIError

from queue_over_sql import (
    Delays,
    DuplicateKey,
    ExponentialBackoff,
    FixedDelay,
    NoRetry,
    Queue,
    QueueService,
)
from queue_over_sql.message import Message
from queue_over_sql.queue import core_of
from queue_over_sql.testing.plugin import MakeService
from queue_over_sql.values.reasons import CONSUMER_DIED, LAST_BEFORE, LEASE_EXPIRED
from tests.contract.queue_state import set_columns
from tests.contract.retry_policies import TwiceThenNever
from tests.sql_api.conftest import MakeClient
from tests.sql_api.sql_clients import LOST, WRONG, Delivered, SqlClient, refusal
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.engines("postgresql", "mariadb", "mysql"),
    pytest.mark.usefixtures("functions_allowed"),
]
CONSUMERS = table(
    "queue_over_sql_consumers",
    *map(column, ("consumer_id", "heartbeat_at", "expires_at", "durable")),
)
SETTLING: list[tuple[str, list[Any]]] = [
    ("ack", []),
    ("nack", ["why", 0]),
    ("release", []),
    ("reject", ["why"]),
    ("extend", [60]),
]


def archived(queue: Queue) -> Message:
    """The one message of the archive."""
    [kept] = queue.archive.messages().list()
    return kept


def live(queue: Queue) -> Message:
    """The one message of the queue."""
    [message] = queue.messages().list()
    return message


def next_of(client: SqlClient) -> Delivered:
    """The next message, once there is one."""
    found: list[Delivered] = []

    def arrived() -> bool:
        found.extend(client.get_many(1))
        return bool(found)

    wait_until(arrived)
    return found[0]


def assert_lost(client: SqlClient, verb: str, message: Delivered, *more: Any) -> None:
    """The verb is refused by the fence."""
    with pytest.raises(DBAPIError) as caught:
        client.settle(verb, message, *more)
    assert LOST == refusal(caught.value)


def test_ack_ends_a_message(installed: QueueService, client: SqlClient) -> None:
    """It is done, with the claim that did it, and a second ack is refused."""
    queue = installed.queue("jobs")
    client.put("1")
    got = client.must_get()
    client.settle("ack", got)
    kept = archived(queue)
    assert "done" == kept.outcome
    assert 1 == kept.attempt
    assert kept.last_error is None
    assert 0 == queue.stats().live
    assert_lost(client, "ack", got)


def test_a_lost_claim_changes_nothing(installed: QueueService, client: SqlClient) -> None:
    """The fence: after the lease went to a later claim, the earlier holder changes nothing."""
    queue = installed.queue("jobs")
    client.put("1")
    first = client.must_get()
    client.rows("UPDATE queue_jobs SET lease_expires_at = 1")
    second = next_of(client)
    before = live(queue)
    for verb, more in SETTLING:
        assert_lost(client, verb, first, *more)
        assert_lost(client, verb, {"id": first["id"], "token": None}, *more)
        assert_lost(client, verb, {"id": 10**6, "token": first["token"]}, *more)
        after = live(queue)
        assert before.lease_expires_at == after.lease_expires_at, verb
        assert 2 == after.attempt, verb
        assert 1 == queue.stats().claimed, verb
    client.settle("ack", second)


def test_a_claim_of_the_library_is_not_for_sql_clients(
    installed: QueueService, client: SqlClient
) -> None:
    """Neither a guessed token nor a delete takes a message from a Python consumer."""
    client.put("1")
    [message] = installed.queue("jobs").consume()
    for verb, more in SETTLING:
        assert_lost(client, verb, {"id": message.id, "token": message.consumer_round}, *more)
    with pytest.raises(DBAPIError) as caught:
        client.delete(message.id)
    assert LOST == refusal(caught.value)
    message.ack()


def test_a_nack_waits_and_counts(installed: QueueService, client: SqlClient) -> None:
    """The reason is kept, the delay is kept, and the next delivery is a second attempt."""
    queue = installed.queue("jobs")
    client.put("1")
    client.settle("nack", client.must_get(), "no route", 3600)
    message = live(queue)
    assert "no route" == message.last_error
    assert message.available_at is not None
    assert message.last_attempt_at is not None
    delay = message.available_at - message.last_attempt_at
    assert 3600.0 == delay.total_seconds()
    queue.messages().reschedule(delay=0)
    assert 2 == client.must_get()["read_cnt"]


POLICIES: list[tuple[Any, float, float]] = [
    (ExponentialBackoff(base=100, factor=3, maximum=1000, jitter=0.5), 150.0, 300.0),
    (ExponentialBackoff(base=100, factor=3, maximum=200, jitter=0), 200.0, 200.0),
    (ExponentialBackoff(base=0), 0.0, 0.0),
    (FixedDelay(7.25), 7.25, 7.25),
    (FixedDelay(0), 0.0, 0.0),
    (Delays([1, 20.5, 3]), 20.5, 20.5),
    (Delays([9]), 9.0, 9.0),
]


def test_a_nack_without_a_delay_asks_the_queues_policy(
    installed: QueueService, client: SqlClient
) -> None:
    """The built-in policies give the delay that they give in Python; here for attempt 2."""
    for policy, least, most in POLICIES:
        queue = installed.create_queue("jobs", retry=policy)
        client.put("1")
        client.settle("nack", client.must_get(), None, 0)
        client.settle("nack", client.must_get(), "again", None)
        message = live(queue)
        assert message.available_at is not None
        assert message.last_attempt_at is not None
        delay = (message.available_at - message.last_attempt_at).total_seconds()
        assert least <= round(delay, 6) <= most, policy
        queue.purge()


def test_a_power_beyond_all_numbers_is_the_longest_delay(
    installed: QueueService, client: SqlClient
) -> None:
    """Many attempts do not overflow a growing delay."""
    policy = ExponentialBackoff(base=1, factor=1000, maximum=50, jitter=0)
    queue = installed.create_queue("jobs", retry=policy)
    client.put("1", 0)
    client.rows("UPDATE queue_jobs SET attempt_count = 5000")
    client.settle("nack", client.must_get(), "x", None)
    message = live(queue)
    assert message.available_at is not None
    assert message.last_attempt_at is not None
    assert 50.0 == (message.available_at - message.last_attempt_at).total_seconds()


def test_without_retries_the_first_nack_ends(installed: QueueService, client: SqlClient) -> None:
    """NoRetry buries at once, unless a delay is given, which replaces the policy's answer."""
    queue = installed.create_queue("jobs", retry=NoRetry())
    client.put("1")
    client.settle("nack", client.must_get(), "once", 0)
    client.settle("nack", client.must_get(), "twice", None)
    kept = archived(queue)
    assert "failed" == kept.outcome
    assert 2 == kept.attempt
    assert "twice" == kept.last_error


@pytest.mark.usefixtures("functions_allowed", "installed")
def test_a_policy_in_python_asks_for_a_delay(make_service: MakeService, client: SqlClient) -> None:
    """SQL cannot run it, and says so; the claim stays."""
    knowing = make_service(retry_policies={"twice": TwiceThenNever})
    knowing.create_queue("jobs", retry=TwiceThenNever(5.0))
    client.put("1")
    got = client.must_get()
    with pytest.raises(DBAPIError) as caught:
        client.settle("nack", got, "x", None)
    assert WRONG == refusal(caught.value)
    client.settle("nack", got, "x", 1)


def test_endings_follow_the_archive_setting(installed: QueueService, client: SqlClient) -> None:
    """``all`` keeps every end, ``failed`` keeps dead letters and rejected ones, ``none`` nothing.

    The last attempt's nack buries, whatever delay is given. What failed and is not kept is counted.
    """
    kept: dict[Any, tuple[int, int, int, int]] = {
        "none": (0, 0, 0, 2),
        "failed": (0, 1, 1, 0),
        "all": (1, 1, 1, 0),
    }
    queues = {archive: installed.create_queue(archive, archive=archive) for archive in kept}
    installed.sql_api.install()
    for archive, queue in queues.items():
        client.put("1", 1, queue=archive)
        client.settle("nack", client.must_get(archive), "broken", 10, queue=archive)
        assert client.get(archive) is None
        client.put_all("[1, 2]", archive)
        first, second = client.get_many(2, archive)
        client.settle("ack", first, queue=archive)
        client.settle("reject", second, "never", queue=archive)
        stats = queue.stats()
        found = (stats.done, stats.rejected, stats.failed, stats.discarded)
        assert kept[archive] == found, archive
        assert 0 == stats.live, archive
        dead = queue.archive.messages(status="failed").list()
        assert {("broken", 1)} >= {(one.last_error, one.attempt) for one in dead}, archive


def test_a_release_is_not_counted(installed: QueueService, client: SqlClient) -> None:
    """The message goes back to its place as if it had never been out."""
    client.put_all('["a", "b"]')
    first = client.must_get()
    client.settle("release", first)
    again = client.must_get()
    assert first["id"] == again["id"]
    assert 1 == again["read_cnt"]
    assert first["token"] != again["token"]
    assert 2 == installed.queue("jobs").stats().live


def test_an_extension_counts_from_now(installed: QueueService, client: SqlClient) -> None:
    """With a length, or the message's own without; a length of nothing is refused."""
    queue = installed.queue("jobs")
    client.put("1", 0, 100)
    got = client.must_get()
    begun = live(queue).lease_expires_at
    client.settle("extend", got, 500)
    longer = live(queue).lease_expires_at
    client.settle("extend", got, None)
    own = live(queue).lease_expires_at
    assert begun is not None
    assert longer is not None
    assert own is not None
    assert 400 <= (longer - begun).total_seconds() < 460
    assert 0 <= (own - begun).total_seconds() < 60
    for wrong in (0, -1, 1e-7, 10**12):
        with pytest.raises(DBAPIError) as caught:
            client.settle("extend", got, wrong)
        assert WRONG == refusal(caught.value)


def test_batches_are_acknowledged_as_a_whole(installed: QueueService, client: SqlClient) -> None:
    """All, or none where one claim is lost, which the error names."""
    queue = installed.queue("jobs")
    client.put_all("[1, 2, 3]")
    messages = client.get_many(3)
    client.settle("release", messages[1])
    with pytest.raises(DBAPIError) as caught:
        client.ack_all(messages)
    assert LOST == refusal(caught.value)
    assert f" {messages[1]['id']}" in str(caught.value.orig)
    assert 0 == queue.stats().done
    for number in (0.4, -0.4):
        first, last = ({name: m[name] + number for name in ("id", "token")} for m in messages[::2])
        with pytest.raises(DBAPIError) as caught:
            client.ack_all([first, last])
        assert WRONG == refusal(caught.value)
    assert 2 == queue.stats().claimed
    client.ack_all([messages[2], messages[0]])
    client.ack_all([])
    assert 2 == queue.stats().done
    for broken in ('{"id": 1}', "nope", None):
        with pytest.raises(DBAPIError):
            client.call("ack_messages", "jobs", broken)


def test_delete_needs_no_token_where_the_holder_is_clear(
    client: SqlClient, make_client: MakeClient
) -> None:
    """The first delivery, from any session; a later one, from the session that got it."""
    client.put("1")
    make_client().delete(client.must_get()["id"])
    client.put("2")
    client.settle("nack", client.must_get(), None, 0)
    got = client.must_get()
    with pytest.raises(DBAPIError) as caught:
        make_client().delete(got["id"])
    assert LOST == refusal(caught.value)
    assert "ack_message" in str(caught.value.orig)
    client.delete(got["id"])
    with pytest.raises(DBAPIError) as caught:
        client.delete(got["id"])
    assert LOST == refusal(caught.value)


def test_delete_is_fenced(
    installed: QueueService, client: SqlClient, make_client: MakeClient
) -> None:
    """Neither after the lease, nor for who held an earlier delivery or content of the message."""
    queue, other = installed.queue("jobs"), make_client()
    client.put("1", 0, 0.05)
    first = client.must_get()
    wait_until(lambda: other.get() is not None)
    with pytest.raises(DBAPIError) as caught:
        client.delete(first["id"])
    assert LOST == refusal(caught.value)
    queue.purge(claimed=True)
    queue.publish("old", key="k")
    first = client.must_get()
    queue.publish("new", key="k", on_conflict="replace")
    assert '"new"' == other.must_get()["payload"]
    with pytest.raises(DBAPIError) as caught:
        client.delete(first["id"])
    assert LOST == refusal(caught.value)
    other.delete(first["id"])
    assert "done" == archived(queue).outcome


def test_a_delete_after_the_lease_is_refused(client: SqlClient) -> None:
    """Without a token nobody can tell whether the message is still with who asks."""
    client.put("1")
    got = client.must_get()
    client.rows("UPDATE queue_jobs SET lease_expires_at = 1")
    with pytest.raises(DBAPIError) as caught:
        client.delete(got["id"])
    assert LOST == refusal(caught.value)
    client.settle("ack", got)


def test_expired_leases_come_back(installed: QueueService, client: SqlClient) -> None:
    """By the reaper, or by the next call that finds too little; the attempt stays counted."""
    queue = installed.queue("jobs")
    for reaped in (True, False):
        client.put("1", 0, 0.05)
        first = client.must_get()
        if reaped:
            wait_until(lambda: installed.reap().restored)
        second = next_of(client)
        assert first["id"] == second["id"], reaped
        assert 2 == second["read_cnt"], reaped
        assert "lease expired" in str(live(queue).last_error), reaped
        queue.purge(claimed=True)


def test_a_message_that_kills_its_consumers_runs_out_of_attempts(
    installed: QueueService, client: SqlClient
) -> None:
    """Nobody but SQL clients: after the last lease it goes to the archive, with the reason."""
    queue = installed.queue("jobs")
    client.put("1", 2, 0.05)
    deliveries = []

    def dead() -> bool:
        deliveries.extend(client.get_many(1))
        return queue.stats().failed == 1

    wait_until(dead)
    assert [1, 2] == [row["read_cnt"] for row in deliveries]
    kept = archived(queue)
    assert kept.last_error is not None
    assert kept.last_error.startswith("out of attempts: the lease expired")


def test_what_the_dead_held_comes_back_as_from_the_reaper(
    installed: QueueService, client: SqlClient, make_service: MakeService, engine: Engine
) -> None:
    """With the same reasons and attempts, whoever gives it back."""
    queue = installed.queue("jobs")
    died, expired = (f"{reason}{LAST_BEFORE}" for reason in (CONSUMER_DIED, LEASE_EXPIRED))
    before = [None, "ValueError", f"{died}KeyError", f"{expired}{'x' * 20_000}", CONSUMER_DIED]
    # How many a consumer held, whether it is known, dead or durable, and how often each was tried.
    held: list[tuple[int, dict[str, Any], int]]
    held = [(5, {"expires_at": 1, "heartbeat_at": 0}, 3), (2, {"consumer_id": "gone"}, 3)]
    held += [(1, {"expires_at": 1, "heartbeat_at": 0}, 1), (1, {"consumer_id": "none"}, 3)]
    held += [(2, {}, 1), (2, {"heartbeat_at": 0, "durable": 1}, 1)]
    # Declared dead with four messages in all, the other ones in other queues.
    held += [(1, {"expires_at": -3, "heartbeat_at": 0}, 3)]
    seen = []
    for reaped in (True, False):
        first = queue.publish("first", delay=3600).id
        for number, (count, change, attempts) in enumerate(held):
            # Neither its own heartbeat nor a claim that looks for expired leases, which one that
            # finds too little does in time, must undo what is written here.
            never = {"consumer_timeout": 3600, "reaper_interval": 600}
            service = make_service(consumer_name=f"c{number}", **never)
            queue.publish_many(range(count))
            for message, error in zip(service.queue("jobs").consume(9), before, strict=False):
                lease = {"lease_expires_at": 1, "attempt_count": attempts, "max_attempts": 3}
                set_columns(engine, queue, message.id, last_error=error, **lease)
                if "consumer_id" in change:
                    set_columns(engine, queue, message.id, **change)
            if "consumer_id" not in change and change:
                with engine.begin() as connection:
                    row = CONSUMERS.c.consumer_id == service.consumer_id
                    connection.execute(update(CONSUMERS).where(row).values(**change))
        if reaped:
            list(core_of(queue).recovery.expired_leases())
        else:
            client.get_many(1)
        rows = [*queue.messages().list(), *queue.archive.messages().list()]
        seen.append(
            [(m.id - first, m.max_attempts, m.outcome, m.last_error) for m in rows if m.id > first]
        )
        queue.messages().remove()
        queue.purge(claimed=True)
        queue.archive.messages().remove()
    assert seen[0] == seen[1]
    assert 14 == len(seen[0])


def test_dead_letters_for_another_queue_are_left_to_the_reaper(
    installed: QueueService, client: SqlClient, make_service: MakeService, engine: Engine
) -> None:
    """It publishes them there. Any number of them hides no other message from a get."""
    dead = installed.create_queue("dead")
    queue = installed.create_queue("jobs", dead_letter_queue="dead")
    services: dict[str, QueueService] = {}
    for name, (spent, held) in {"slow": (101, 102), "crashed": (1, 2)}.items():
        service = services[name] = make_service(consumer_timeout=3600, reaper_interval=600)
        queue.publish_many([name] * held)
        messages = service.queue("jobs").consume(held)
        tried = case((queue.table.c.id <= messages[spent - 1].id, 3), else_=1)
        values = {"lease_expires_at": 1, "max_attempts": 3, "attempt_count": tried}
        where = queue.table.c.consumer_id == service.consumer_id
        with engine.begin() as connection:
            connection.execute(update(queue.table).where(where).values(values))
    with engine.begin() as connection:
        row = CONSUMERS.c.consumer_id == services["crashed"].consumer_id
        connection.execute(update(CONSUMERS).where(row).values(heartbeat_at=0, expires_at=1))
    [late] = client.get_many(9)
    assert (json.dumps("slow"), 2) == (late["payload"], late["read_cnt"])
    # Either may have crashed their consumer, so each of them comes alone, and may be tried again.
    for _ in range(2):
        [suspect] = client.get_many(9)
        assert json.dumps("crashed") == suspect["payload"]
    assert [] == client.get_many(9)
    assert (0, 0) == (queue.stats().archived, dead.stats().ready)
    list(core_of(queue).recovery.expired_leases())
    assert (101, 101) == (queue.stats().failed, dead.stats().ready)


def test_suspects_come_apart(installed: QueueService, client: SqlClient, engine: Engine) -> None:
    """Of those that a dead consumer held as many as the library claims, and nothing with them."""
    queue = installed.create_queue("jobs", priorities=2)
    installed.sql_api.install()
    died = "the consumer died while it held the message"
    errors = {
        **dict.fromkeys("abc", f"{died} and 63 others: lost, process 1 on host here"),
        "d": f"{died} and 35 others: lost\nThe last error before: ValueError",
        "e": f"{died} and 1 other: lost",
        "f": f"{died} (a durable consumer)",
        "g": f"ValueError: {died}: lost",
        "h": None,
        "i": f"{died}: lost",
        "j": None,
        "k": None,
        "l": f"{died} and 99 others: lost",
    }
    for payload, error in errors.items():
        published = queue.publish(payload, priority=int(payload in "kl"))
        set_columns(engine, queue, published.id, last_error=error)
    found = [
        "".join(json.loads(row["payload"]) for row in client.get_many(count))
        for count in (3, 20, 20, 20, 20, 20, 20, 20)
    ]
    assert ["abc", "d", "e", "fgh", "i", "jk", "l", ""] == found


def test_living_claims_survive_the_reaper(installed: QueueService, client: SqlClient) -> None:
    """The consumer of SQL clients has no heartbeat and does not count as dead for it."""
    client.put("1")
    got = client.must_get()
    assert 0 == installed.reap().restored
    assert 0 == installed.reap().consumers
    client.settle("ack", got)


def test_keys_stay_taken_for_the_window(installed: QueueService, client: SqlClient) -> None:
    """A message that a SQL client ends keeps its key for the queue's ``dedup_window``."""
    queue = installed.create_queue("jobs", dedup_window=3600)
    for end in ("ack", "reject", "nack"):
        queue.publish(1, key=end, max_attempts=1)
        more = {"ack": (), "reject": ("x",), "nack": ("x", 0)}[end]
        client.settle(end, client.must_get(), *more)
        with pytest.raises(DuplicateKey):
            queue.publish(1, key=end)
    client.rows("UPDATE queue_jobs_dedup_keys SET expires_at = 0")
    queue.publish(1, key="ack")
    client.ack_all(client.get_many(1))
    with pytest.raises(DuplicateKey):
        queue.publish(1, key="ack")


def test_a_long_reason_is_cut(installed: QueueService, client: SqlClient) -> None:
    """As in the library, a reason is kept up to 20,000 characters."""
    client.put("1")
    client.settle("reject", client.must_get(), "é" * 30_000)
    assert "é" * 20_000 == archived(installed.queue("jobs")).last_error


def test_tokens_fit_every_language(client: SqlClient) -> None:
    """A token is a whole number below 2**53, and no two claims have the same."""
    client.put_all(json.dumps(list(range(20))))
    tokens = [client.must_get()["token"] for _ in range(10)]
    assert 10 == len(set(tokens))
    assert all(0 < token < 2**53 for token in tokens)
    assert 1 == len({row["token"] for row in client.get_many(10)})
