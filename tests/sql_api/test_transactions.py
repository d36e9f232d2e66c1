"""The SQL API inside its caller's transactions, with isolation levels and locks."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from queue_over_sql import QueueService
from tests.sql_api.conftest import MakeClient
from tests.sql_api.sql_clients import LOST, SqlClient, refusal

pytestmark = [
    pytest.mark.engines("postgresql", "mariadb", "mysql"),
    pytest.mark.usefixtures("functions_allowed"),
]

LONGEST_WAIT = "SET SESSION innodb_lock_wait_timeout = 5"


def test_a_put_is_rolled_back_with_its_transaction(
    installed: QueueService, make_client: MakeClient
) -> None:
    """Nobody sees a message before the commit, and after a rollback nobody ever does."""
    queue, client = installed.queue("jobs"), make_client(autocommit=False)
    client.put("1")
    client.put_all("[2, 3]")
    assert 0 == queue.stats().live
    client.connection.rollback()
    assert 0 == queue.stats().live
    client.put("4")
    client.connection.commit()
    assert [4] == [message.payload for message in queue.consume(5)]


def test_a_settle_is_rolled_back_with_its_transaction(
    installed: QueueService, make_client: MakeClient
) -> None:
    """After a rollback the claim is as it was, and can be settled as if nothing had been."""
    queue, client = installed.queue("jobs"), make_client(autocommit=False)
    client.put("1")
    got = client.must_get()
    client.connection.commit()
    before = queue.messages().list()
    more = {"nack": ("x", 0), "reject": ("x",), "extend": (999,)}
    for verb in ("ack", "nack", "release", "reject", "extend", "delete"):
        if verb == "delete":
            client.delete(got["id"])
        else:
            client.settle(verb, got, *more.get(verb, ()))
        client.connection.rollback()
        after = queue.messages().list()
        leases = [[m.lease_expires_at for m in found] for found in (before, after)]
        assert leases[0] == leases[1], verb
        assert 0 == queue.stats().archived, verb
    client.settle("ack", got)
    client.connection.commit()
    assert 1 == queue.stats().done


def test_a_claim_is_rolled_back_with_its_transaction(
    installed: QueueService, make_client: MakeClient
) -> None:
    """The attempt is uncounted, and the token of the claim that never was opens nothing."""
    client = make_client(autocommit=False)
    client.put("1")
    client.connection.commit()
    ghost = client.must_get()
    client.connection.rollback()
    got = client.must_get()
    assert 1 == ghost["read_cnt"]
    assert 1 == got["read_cnt"]
    client.connection.commit()
    with pytest.raises(DBAPIError) as caught:
        client.settle("ack", ghost)
    assert LOST == refusal(caught.value)
    client.connection.rollback()
    client.delete(got["id"])
    client.connection.commit()
    assert 1 == installed.queue("jobs").stats().done


def test_effects_and_ack_are_one_transaction(
    installed: QueueService, make_client: MakeClient
) -> None:
    """The effect of a lost claim is undone with the refused ack: exactly once."""
    client = make_client(autocommit=False)
    client.rows("CREATE TABLE effects (id BIGINT)")
    client.put("1")
    got = client.must_get()
    client.connection.commit()
    for _ in range(2):
        client.rows("INSERT INTO effects VALUES (1)")
        try:
            client.settle("ack", got)
            client.connection.commit()
        except DBAPIError:
            client.connection.rollback()
    assert 1 == len(client.rows("SELECT id FROM effects"))
    assert 1 == installed.queue("jobs").stats().done


def test_an_old_snapshot_claims_what_is_there_now(
    installed: QueueService, make_client: MakeClient
) -> None:
    """A REPEATABLE READ transaction that has read before never gets what others have finished."""
    queue = installed.queue("jobs")
    queue.load(range(3))
    client = make_client(autocommit=False)
    client.connection.execution_options(isolation_level="REPEATABLE READ")
    client.rows("SELECT count(*) AS n FROM queue_jobs")
    [first] = queue.consume()
    first.ack()
    [second] = queue.consume()
    # PostgreSQL refuses what the snapshot does not show to the end, as it does for any statement.
    expected = "40001" if client.connection.dialect.name == "postgresql" else "2"
    assert expected == payload_or_state(client)
    client.connection.rollback()
    second.ack()
    assert 2 == queue.stats().done


def payload_or_state(client: SqlClient) -> str:
    """The payload of the next message, or the state of the error."""
    try:
        return str(client.must_get()["payload"])
    except DBAPIError as error:
        return str(getattr(error.orig, "sqlstate", error.orig))


@pytest.mark.engines("mariadb", "mysql")
def test_procedures_leave_the_callers_isolation_alone(
    client: SqlClient, make_client: MakeClient
) -> None:
    """They read at READ COMMITTED for themselves, and the caller's transactions do as before."""
    for call in (client.get, lambda: client.put("1"), client.get):
        call()
    with pytest.raises(DBAPIError):
        client.call("ack_message", "nope", 1, 1)
    client.rows("CREATE TABLE other (id INT)")
    client.rows("START TRANSACTION")
    assert [] == client.rows("SELECT id FROM other")
    make_client().rows("INSERT INTO other VALUES (1)")
    assert [] == client.rows("SELECT id FROM other"), "a snapshot, as REPEATABLE READ has it"
    client.rows("COMMIT")
    assert 1 == len(client.rows("SELECT id FROM other"))


@pytest.mark.engines("mariadb", "mysql")
def test_procedures_commit_nothing_of_the_callers(
    installed: QueueService, client: SqlClient, make_client: MakeClient
) -> None:
    """START TRANSACTION under autocommit: what stood before a call is rolled back with it."""
    client.rows("CREATE TABLE other (id INT)")
    client.put("1")
    for verb in ("get", "ack"):
        client.rows("START TRANSACTION")
        client.rows("INSERT INTO other VALUES (1)")
        got = client.must_get()
        if verb == "ack":
            client.settle("ack", got)
        client.rows("ROLLBACK")
        assert [] == make_client().rows("SELECT id FROM other")
    assert 1 == installed.queue("jobs").stats().ready


def test_an_open_transaction_keeps_nobody_waiting(
    client: SqlClient, make_client: MakeClient
) -> None:
    """Pausing, putting and settling go on beside a transaction that has put, got and settled."""
    engine = client.connection.dialect.name
    timeout = "SET lock_timeout = '5s'" if engine == "postgresql" else LONGEST_WAIT
    client.rows(timeout)
    open_one = make_client(autocommit=False)
    client.put_all("[1, 2, 3]")
    open_one.settle("nack", open_one.must_get(), "x", None)
    open_one.must_get()
    open_one.put("4")
    third = client.must_get()
    client.put("5")
    client.rows("UPDATE queue_over_sql_queues SET paused_at = 1")
    client.settle("ack", third)
    open_one.connection.rollback()
    assert client.get() is None
    client.rows("UPDATE queue_over_sql_queues SET paused_at = NULL")
    assert ["1", "2", "5"] == [row["payload"] for row in client.get_many(9)]


@pytest.mark.engines("mariadb", "mysql")
def test_a_claim_walks_its_index_there(installed: QueueService, client: SqlClient) -> None:
    """One message out of thousands costs a handful of reads, and so does its ack."""
    installed.queue("jobs").load(range(5000))
    reads = "SHOW SESSION STATUS LIKE 'Handler_read%%'"

    def count() -> int:
        return sum(int(row["Value"]) for row in client.rows(reads))

    client.settle("ack", client.must_get())
    before = count()
    got = client.must_get()
    claimed = count()
    client.settle("ack", got)
    assert 200 > claimed - before
    assert 200 > count() - claimed


@pytest.mark.engines("postgresql")
def test_a_claim_walks_its_index(installed: QueueService, make_client: MakeClient) -> None:
    """One message out of thousands costs a handful of rows and no sequential scan."""
    installed.queue("jobs").load(range(5000))
    client = make_client()
    client.rows("ANALYZE queue_jobs")
    worker = make_client(autocommit=False)
    worker.settle("ack", worker.must_get())
    [row] = worker.rows(
        "SELECT seq_scan, seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables"
        " WHERE relid = CAST('queue_jobs' AS regclass)"
    )
    assert 0 == row["seq_scan"]
    assert 0 == row["seq_tup_read"]
    assert 20 > row["idx_tup_fetch"]
