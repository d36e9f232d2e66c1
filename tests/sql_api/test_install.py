"""Installing, upgrading and uninstalling the SQL API, and the needed rights."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from queue_over_sql import ConsumerTaken, QueueError, QueueService, UnsupportedByEngine
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.contract.durable.queries import Query
from tests.sql_api.conftest import MakeClient
from tests.sql_api.sql_clients import LOST, UNKNOWN, SqlClient, refusal, trusting_creators

pytestmark = [
    pytest.mark.engines("postgresql", "mariadb", "mysql"),
    pytest.mark.usefixtures("functions_allowed"),
]

OURS = {
    "postgresql": "SELECT proname AS name, oid::text AS at FROM pg_proc"
    " WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    "mariadb": "SELECT routine_name AS name, created AS at FROM information_schema.routines"
    " WHERE routine_schema = DATABASE() ORDER BY 1",
}
OURS["mysql"] = OURS["mariadb"]


def routines(client: SqlClient, engine: str) -> list[Any]:
    """All routines of the database, and what tells one making of them from another."""
    return [tuple(row.values()) for row in client.rows(OURS[engine])]


def test_installing_again_changes_nothing(
    installed: QueueService, client: SqlClient, database: TestDatabase
) -> None:
    """Every server may install at its start: the second time no routine is touched."""
    before = routines(client, database.engine)
    installed.sql_api.install()
    assert before == routines(client, database.engine)
    assert 1 == len(installed.consumers())


def test_many_may_install_at_once(make_service: MakeService, make_client: MakeClient) -> None:
    """Four servers that boot together end with one working API."""
    services = [make_service() for _ in range(4)]
    services[0].create_queue("jobs")
    failed: list[Exception] = []

    def install(service: QueueService) -> None:
        try:
            service.sql_api.install()
        except Exception as error:  # noqa: BLE001 - the main thread reports it
            failed.append(error)

    threads = [threading.Thread(target=install, args=(service,)) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed
    client = make_client()
    client.put("1")
    client.delete(client.must_get()["id"])


def test_rounds_of_durable_consumers_are_something_else(
    installed: QueueService, client: SqlClient
) -> None:
    """What numbers the claims of SQL clients, and the rounds of streaming queries: side by side."""
    query = Query(installed.queue("jobs"))
    client.put("1")
    [planned] = query.plan()
    client.put("2")
    client.delete(client.must_get()["id"])
    assert [1] == query.read(planned)
    installed.sql_api.uninstall()
    query.checkpoint = planned.consumer_round
    assert [] == query.plan()
    assert 0 == query.queue.messages().count()


def test_uninstalling_gives_back_and_leaves_nothing(
    installed: QueueService, client: SqlClient, database: TestDatabase
) -> None:
    """What clients hold is ready again, uncounted; no routine, counter or consumer remains."""
    queue = installed.queue("jobs")
    client.put("1")
    got = client.must_get()
    assert installed.sql_api.uninstall()
    assert [] == routines(client, database.engine)
    assert [] == installed.consumers()
    [message] = queue.consume()
    assert 1 == message.attempt
    message.release()
    assert not installed.sql_api.uninstall()
    with pytest.raises(DBAPIError):
        client.rows("SELECT * FROM queue_over_sql_rounds")
    installed.sql_api.install()
    again = client.must_get()
    assert got["token"] < again["token"]
    with pytest.raises(DBAPIError) as caught:
        client.settle("ack", got)
    assert LOST == refusal(caught.value)


def test_the_consumer_of_sql_clients_is_shown_sensibly(installed: QueueService) -> None:
    """It is registered for good, and no reaper takes it for dead."""
    [consumer] = installed.consumers()
    assert consumer.permanent
    assert "sql-api" == consumer.consumer_id
    assert "sql-api" == consumer.name
    installed.reap()
    assert [consumer] == installed.consumers()
    with installed:
        [running] = [c for c in installed.consumers() if c.consumer_id == installed.consumer_id]
    assert not running.permanent


def test_a_queue_that_was_dropped_is_unknown(
    installed: QueueService, client: SqlClient, database: TestDatabase
) -> None:
    """Its calls fail and those of the others do not; the next installation clears up."""
    installed.create_queue("other")
    installed.sql_api.install()
    installed.drop_queue("other")
    with pytest.raises(DBAPIError):
        client.put("1", queue="other")
    with pytest.raises(DBAPIError):
        client.get("other")
    client.put("1")
    client.delete(client.must_get()["id"])
    installed.sql_api.install()
    assert not [name for name, _ in routines(client, database.engine) if "other" in name]


def test_queues_of_replies_are_not_served(
    make_service: MakeService, make_client: MakeClient
) -> None:
    """Who may execute the routines cannot read or take an answer that somebody waits for."""
    service, client = make_service(), make_client()
    # On a busy machine heartbeats come late, and an installation takes a while.
    queue = make_service(consumer_timeout=3600).create_queue("jobs", lease=3600)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(queue.request, "how much?", timeout=600)
        [request] = queue.consume(wait=600)
        service.sql_api.install()
        inbox = str(request.reply_to)
        for act in (client.get, lambda name: client.put("1", queue=name)):
            with pytest.raises(DBAPIError) as refused:
                act(inbox)
            assert UNKNOWN == refusal(refused.value)
        request.reply("much")
        request.ack()
        assert "much" == asked.result().payload


def test_a_new_queue_is_served_after_the_next_installation(
    installed: QueueService, client: SqlClient
) -> None:
    """On PostgreSQL even before it."""
    queue = installed.create_queue("fresh", payload="text")
    installed.sql_api.install()
    client.put("hello", queue="fresh")
    assert ["hello"] == [message.payload for message in queue.consume()]


def test_an_earlier_version_is_replaced_in_place(
    installed: QueueService, client: SqlClient, make_client: MakeClient, database: TestDatabase
) -> None:
    """Other bodies, other parameters, routines that are no more: all as new, and rights stay."""
    if database.engine == "postgresql":
        old = "queue_over_sql sql-api queue_ 000000000000 000000000000"
        for statement in (
            "CREATE ROLE {role} LOGIN",
            "DROP FUNCTION ack_message(text, bigint, bigint)",
            "CREATE FUNCTION ack_message(text, bigint) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            f"COMMENT ON FUNCTION ack_message(text, bigint) IS '{old}'",
            "GRANT EXECUTE ON FUNCTION ack_message(text, bigint) TO {role}",
            "CREATE FUNCTION gone() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            f"COMMENT ON FUNCTION gone() IS '{old}'",
        ):
            client.rows(statement.format(role=role_of(database)))
    else:
        old = "COMMENT 'queue_over_sql sql-api queue_ 000000000000 000000000000'"
        for statement in (
            "CREATE USER {role}",
            "DROP PROCEDURE ack_message",
            f"CREATE PROCEDURE ack_message(IN a INT) {old} SELECT 1",
            "GRANT EXECUTE ON PROCEDURE ack_message TO {role}",
            f"CREATE FUNCTION gone() RETURNS INT DETERMINISTIC {old} RETURN 1",
        ):
            client.rows(statement.format(role=role_of(database)))
    installed.sql_api.install()
    assert "gone" not in [name for name, _ in routines(client, database.engine)]
    client.put("1")
    got = client.must_get()
    make_client(as_role(database)).settle("ack", got)
    forget_role(client, database)


def test_names_that_are_taken_are_left_alone(
    service: QueueService, make_client: MakeClient, database: TestDatabase
) -> None:
    """A function of the user's with one of our names is not replaced: nothing is installed."""
    service.create_queue("jobs")
    client = make_client()
    if database.engine == "postgresql":
        client.rows("CREATE FUNCTION ack_message(int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    else:
        client.rows("CREATE PROCEDURE ack_message() SELECT 1")
    with pytest.raises(QueueError, match="ack_message"):
        service.sql_api.install()
    assert ["ack_message"] == [name for name, _ in routines(client, database.engine)]
    assert not service.sql_api.uninstall()
    assert ["ack_message"] == [name for name, _ in routines(client, database.engine)]


def test_one_schema_serves_one_prefix(
    installed: QueueService, make_service: MakeService, client: SqlClient
) -> None:
    """Another service's tables beside them are refused, and its uninstalling takes nothing away."""
    other = make_service(table_prefix="other_")
    other.create_queue("jobs")
    with pytest.raises(QueueError, match="'queue_'"):
        other.sql_api.install()
    assert not other.sql_api.uninstall()
    assert 1 == len(installed.consumers())
    client.put("1")
    assert 1 == installed.queue("jobs").stats().ready
    installed.sql_api.uninstall()
    other.sql_api.install()
    client.put("1")
    assert 1 == other.queue("jobs").stats().ready


@pytest.mark.engines("postgresql")
def test_tables_in_a_schema_have_their_routines_there(
    make_service: MakeService, make_client: MakeClient
) -> None:
    """With ``schema=`` and names that need quotes the routines work from any search path."""
    client = make_client()
    schema = '"My \'s "" %s schema"'
    client.connection.exec_driver_sql(
        f"CREATE SCHEMA {schema}", execution_options={"no_parameters": True}
    )
    service = make_service(schema="My 's \" %s schema")
    queue = service.create_queue("jobs", archive="all")
    service.sql_api.install()
    at = schema.replace("%", "%%")
    [row] = client.rows(f"SELECT {at}.put_message_in_queue('jobs', '1', 0, 0) AS id")
    [got] = client.rows(f"SELECT * FROM {at}.get_message_from_queue('jobs')")
    assert row["id"] == got["id"]
    client.rows(f"SELECT {at}.delete_message_from_queue('jobs', {row['id']})")
    assert 1 == queue.stats().done
    service.sql_api.uninstall()


def role_of(database: TestDatabase) -> str:
    """A role of this test alone: roles belong to the server."""
    name = f"role_{str(make_url(database.url).database)[-12:]}"
    return name if database.engine == "postgresql" else f"{name}@'%%'"


def as_role(database: TestDatabase) -> str:
    """The URL of a session of that role."""
    url = make_url(database.url).set(username=role_of(database).partition("@")[0], password="")
    return url.render_as_string(hide_password=False)


def forget_role(client: SqlClient, database: TestDatabase) -> None:
    """Drop that role."""
    if database.engine == "postgresql":
        client.rows(f"DROP OWNED BY {role_of(database)}")
        client.rows(f"DROP ROLE {role_of(database)}")
    else:
        client.rows(f"DROP USER {role_of(database)}")


def test_a_role_may_execute_and_nothing_else(
    installed: QueueService, client: SqlClient, make_client: MakeClient, database: TestDatabase
) -> None:
    """With ``roles=`` a client without any right on the tables puts, gets and deletes."""
    role = role_of(database)
    client.rows(
        f"CREATE ROLE {role} LOGIN" if database.engine == "postgresql" else f"CREATE USER {role}"
    )
    if database.engine == "postgresql":
        stranger = make_client(as_role(database))
        with pytest.raises(DBAPIError):
            stranger.put("1")
    installed.sql_api.install(roles=[role.replace("'", "").replace("%%", "%")])
    app = make_client(as_role(database))
    app.put("1")
    app.put_all("[2, 3]")
    first, second = app.must_get(), app.must_get()
    app.delete(first["id"])
    app.settle("ack", second)
    app.settle("nack", app.must_get(), "x", None)
    for forbidden in (
        "SELECT * FROM queue_jobs",
        "SELECT * FROM queue_over_sql_queues",
        "DELETE FROM queue_jobs",
        inner_call(database.engine),
    ):
        with pytest.raises(DBAPIError):
            app.rows(forbidden)
    installed.create_queue("fresh")
    installed.sql_api.install()
    app.put("1", queue="fresh")
    forget_role(client, database)


def inner_call(engine: str) -> str:
    """A call around the public routines."""
    if engine == "postgresql":
        return "SELECT queue_over_sql_settings('jobs')"
    return "SELECT queue_jobs_sql_put('1', NULL, NULL)"


def test_a_foreign_search_path_misleads_nobody(
    installed: QueueService, client: SqlClient, make_client: MakeClient, database: TestDatabase
) -> None:
    """Tables and functions of a caller's own with the same names are not used."""
    mine = make_client()
    if database.engine == "postgresql":
        mine.rows("CREATE TEMPORARY TABLE queue_jobs (id bigint)")
        mine.rows("CREATE TEMPORARY TABLE queue_over_sql_queues (id bigint)")
        mine.rows("SET search_path = pg_temp, public")
    else:
        mine.rows("SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'")
    mine.put('{"a": "b\\\\c"}')
    mine.delete(mine.must_get()["id"])
    assert 1 == installed.queue("jobs").stats().done
    assert client.get() is None


def test_the_script_does_what_install_does(
    service: QueueService, make_client: MakeClient, database: TestDatabase
) -> None:
    """What ``script()`` returns, given to the shell of the engine, installs the API."""
    queue = service.create_queue("jobs", archive="all")
    script = service.sql_api.script()
    for _ in range(2):
        run_shell(database, script)
    client = make_client()
    client.put("1")
    client.delete(client.must_get()["id"])
    assert 1 == queue.stats().done
    service.sql_api.install()
    assert service.sql_api.uninstall()


def run_shell(database: TestDatabase, script: str) -> None:
    """Give a script to psql or mysql."""
    url = make_url(database.url)
    place = ["-h", str(url.host), "-p" if database.engine == "postgresql" else "-P", str(url.port)]
    if database.engine == "postgresql":
        shell = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *place, "-U", str(url.username)]
    else:
        shell = ["mysql", "--no-defaults", *place, "-u", str(url.username)]
    done = subprocess.run(
        [*shell, str(url.database)], input=script, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr


@pytest.mark.engines("mysql")
def test_a_server_with_a_binary_log_has_to_allow_functions(
    make_service: MakeService, make_client: MakeClient, database: TestDatabase
) -> None:
    """As MySQL is set up by default: until it is allowed nobody may install, then an owner may."""
    administrator, name = make_client(), make_url(database.url).database
    assert [{"written": 1}] == administrator.rows("SELECT @@log_bin AS written")
    role = role_of(database)
    administrator.rows(f"CREATE USER {role}")
    administrator.rows(f"GRANT ALL ON `{name}`.* TO {role}")
    root = make_service()
    queue = root.create_queue("jobs", archive="all")
    with QueueService(as_role(database)) as owner:
        with trusting_creators(database, trusted=False):
            for service in (owner, root):
                with pytest.raises(
                    UnsupportedByEngine, match="log_bin_trust_function_creators = 1"
                ):
                    service.sql_api.install()
        assert [] == routines(administrator, database.engine)
        owner.sql_api.install()
        app = make_client(as_role(database))
        app.put("1")
        app.delete(app.must_get()["id"])
        assert 1 == queue.stats().done
        assert owner.sql_api.uninstall()
    forget_role(administrator, database)


@pytest.mark.engines("sqlite", "h2")
def test_other_engines_say_that_they_cannot(service: QueueService) -> None:
    """No stored functions, no SQL API."""
    for act in (service.sql_api.install, service.sql_api.uninstall, service.sql_api.script):
        with pytest.raises(UnsupportedByEngine, match="SQL API"):
            act()


def test_no_durable_consumer_stands_for_sql_clients(
    installed: QueueService, client: SqlClient
) -> None:
    """Its claims would come back with it; one of an earlier version is told to be dropped."""
    queue = installed.queue("jobs")
    for _ in range(2):
        with pytest.raises(ConsumerTaken, match="SQL clients"):
            Query(queue, name="sql-api")
        installed.sql_api.uninstall()
    Query(queue, name="query")
    client.rows("UPDATE queue_over_sql_consumers SET consumer_id = 'sql-api' WHERE durable = 1")
    with pytest.raises(QueueError, match="consumer drop 'sql-api'"):
        installed.sql_api.install()
    installed.drop_consumer("sql-api")
    installed.sql_api.install()
