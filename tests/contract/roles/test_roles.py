"""Database roles: each can do its work, and gets our error for everything else."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, NullPool, create_engine, make_url, text

from queue_over_sql import (
    DuplicateKey,
    Message,
    NotPermitted,
    Publication,
    Queue,
    QueueNotFound,
    QueueSchemaMismatch,
    QueueService,
    Reason,
    RequestTimeout,
    UnsupportedByEngine,
)
from queue_over_sql.message import claim_of
from queue_over_sql.observability import Health
from queue_over_sql.observability.history import History, read_history
from queue_over_sql.observability.prometheus import DatabaseCollector, exposition
from queue_over_sql.queue import core_of
from queue_over_sql.roles.grants import not_permitted
from queue_over_sql.service import parts_of
from queue_over_sql.settling.operations import restore
from queue_over_sql.statements.requests import Settlement
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql.web.idempotency import Answer, Idempotency
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.snapshot import Snapshots
from queue_over_sql.web.tables import WebStore
from tests.cli.command_line import run, succeed
from tests.contract.durable.queries import Query
from tests.contract.payloads.kind_types import Order
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.engines("postgresql", "mysql", "mariadb"),
    pytest.mark.threads("rights are the database's, whoever waits"),
]
Call = Callable[[], object]


class Logins:
    """Logins of this test alone, each with one role; all are dropped at its end."""

    def __init__(self, database: TestDatabase, stack: contextlib.ExitStack) -> None:
        self._database = database
        self._stack = stack
        tail = str(make_url(database.url).database)[-6:]
        self.prefix = f"r{tail}_"
        options = {"no_parameters": True}
        self._engine = create_engine(
            database.url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            execution_options=options,
        )

    def run(self, statement: str) -> None:
        """Run a statement as the administrator."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql(statement).close()

    def url(self, *roles: str) -> URL:
        """The URL of the login that ``service`` made for these roles."""
        name = self.prefix + "_".join(["login", *roles])[:20]
        return make_url(self._database.url).set(username=name, password="")

    def service(self, *roles: str, **settings: Any) -> QueueService:
        """A service whose login has these roles alone."""
        name = self.prefix + "_".join(["login", *roles])[:20]
        granted = [self.prefix + role for role in roles]
        if self._database.engine == "postgresql":
            self.run(f"CREATE ROLE {name} LOGIN")
            for role in granted:
                self.run(f"GRANT {role} TO {name}")
        else:
            self._create_user(name, granted)
        return self.again(*roles, **settings)

    def again(self, *roles: str, **settings: Any) -> QueueService:
        """One more service of a login that ``service`` made."""
        service = QueueService(self.url(*roles), consumer_timeout=5.0, **settings)
        self._stack.callback(service.stop)
        return service

    def _create_user(self, name: str, granted: list[str]) -> None:
        user = f"'{name}'@'%'"
        self.run(f"CREATE USER {user}")
        for role in granted:
            self.run(f"GRANT {role} TO {user}")
        if self._database.engine == "mysql":
            self.run(f"SET DEFAULT ROLE ALL TO {user}")
            return
        # One role is in force at a time: the others come with it.
        for role in granted[1:]:
            self.run(f"GRANT {role} TO {granted[0]}")
        self.run(f"SET DEFAULT ROLE {granted[0]} FOR {user}")

    def forget(self) -> None:
        """Drop whatever begins with the prefix."""
        if self._database.engine == "postgresql":
            listed = "SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{}')"
        else:
            listed = "SELECT user FROM mysql.user WHERE LEFT(user, CHAR_LENGTH('{0}')) = '{0}'"
        with self._engine.connect() as connection:
            found = connection.exec_driver_sql(listed.format(self.prefix)).scalars().all()
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in found]
        for name in names:
            if self._database.engine == "postgresql":
                self.run(f"DROP OWNED BY {name}")
                self.run(f"DROP ROLE {name}")
            elif name.startswith(f"{self.prefix}login"):
                self.run(f"DROP USER '{name}'@'%'")
            else:
                self.run(f"DROP ROLE {name}")


@pytest.fixture
def logins(database: TestDatabase) -> Iterator[Logins]:
    """Makes services whose login has one of the roles, which are installed by then."""
    with contextlib.ExitStack() as stack:
        made = Logins(database, stack)
        made.forget()
        stack.callback(made.forget)
        yield made


@pytest.fixture
def owner(make_service: MakeService, logins: Logins) -> QueueService:
    """The service of the tables' owner, with queues, a topic and the roles."""
    service = make_service()
    service.create_queue("jobs", archive="all", dedup_window=60)
    service.create_queue("copies", archive="none", unused_for=3600)
    service.create_queue("old", archive="all", archive_ttl=0.001)
    service.create_queue("replies")
    service.create_queue("waiting", unique="waiting")
    service.create_topic("news").subscribe("jobs")
    service.roles.install(reply_queues=["replies"], prefix=logins.prefix)
    return service


def refused(*operations: Call) -> list[NotPermitted]:
    """What these raise; each has to be an error of ours about a right."""
    found = []
    for operation in operations:
        with pytest.raises(NotPermitted) as refusal:
            operation()
        found.append(refusal.value)
    return found


def jobs_of(service: QueueService) -> Queue:
    """As a service does when it boots, whatever its rights."""
    return service.create_queue("jobs", archive="all", dedup_window=60)


def test_a_publisher_publishes_and_does_nothing_else(owner: QueueService, logins: Logins) -> None:
    """One, many, with a key, delayed, in bulk, to a topic; starting it is no error."""
    service = logins.service("publisher")
    with service:
        assert {"database": "ok"} == Health(service, database_timeout=60).ready().checks
        jobs = jobs_of(service)
        first = jobs.publish({"n": 1}, key="k", delay=60)
        assert jobs.publish({"n": 2}, key="k", on_conflict="skip").id == first.id
        with pytest.raises(DuplicateKey):
            jobs.publish({"n": 2}, key="k")
        jobs.publish_many([{"n": n} for n in range(3)])
        jobs.publish_many([{"n": n} for n in range(3)], on_conflict="skip")
        jobs.load({"n": n} for n in range(5))
        assert 1 == len(service.topic("news").publish({"n": 3}, routing_key="a.b"))
        waiting = service.queue("waiting")
        for _ in range(2):
            assert "created" == waiting.publish({"n": 4}, key="k").outcome
            assert "skipped" == waiting.publish({"n": 4}, key="k", on_conflict="skip").outcome
            owner.queue("waiting").consume()
        held = owner.queue("jobs").consume()[0]
        errors = refused(
            lambda: jobs.publish({"n": 2}, key="k", on_conflict="replace"),
            jobs.consume,
            lambda: jobs.delete(first.id),
            jobs.purge,
            jobs.pause,
            lambda: jobs.messages(key="k").hold(),
            lambda: service.drop_queue("jobs"),
            lambda: service.create_queue("more"),
            lambda: service.create_topic("more"),
            lambda: service.create_queue("jobs", max_attempts=9),
        )
    assert "queue_jobs" == errors[0].table
    assert ("consumer", "operator") == errors[2].roles
    assert ("DELETE",) == errors[2].rights
    assert "roles consumer and operator have" in str(errors[2])
    assert all(error.__cause__ is not None for error in errors)
    held.ack()


def test_a_publisher_takes_back_what_it_may_not_publish(
    owner: QueueService, logins: Logins
) -> None:
    """Though it may delete nothing: keys that are taken, or that finished messages have.

    Alone and in batches, in transactions of its own and of a caller, which goes on.
    """
    jobs = owner.queue("jobs")
    ids = {key: jobs.publish(key, key=key).id for key in ("done", "also done")}
    jobs.ack(jobs.consume(2))
    ids["taken"] = jobs.publish("taken", key="taken").id
    service = logins.service("publisher")
    mine = service.queue("jobs")
    # So many that one INSERT does not hold them.
    new = [Publication(n, key=f"k{n}" if n % 2 else None) for n in range(600)]

    def told(key: str, publish: Callable[[], Any]) -> tuple[str, list[int]]:
        try:
            published = publish()
        except DuplicateKey as error:
            return error.key, [error.id or 0]
        listed = published if isinstance(published, list) else [published]
        return key, [one.id for one in listed if one.outcome == "skipped"]

    def publish(on_conflict: Any, connection: Any = None) -> list[tuple[str, list[int]]]:
        found = []
        for key in ids:
            how = {"on_conflict": on_conflict, "connection": connection}
            batch = [*new[:300], Publication("again", key=key), *new[300:]]
            found.append(told(key, partial(mine.publish, "again", key=key, **how)))
            found.append(told(key, partial(mine.publish_many, batch, **how)))
        return found

    refusals = [(key, [ids[key]]) for key in ids for _ in range(2)]
    engine = create_engine(logins.url("publisher"), poolclass=NullPool)
    assert refusals == publish("raise")
    with engine.begin() as connection:
        assert refusals == publish("raise", connection)
        assert "created" == mine.publish("after it", connection=connection).outcome
    assert ["after it", "taken"] == sorted(m.payload for m in jobs.messages().list())

    for place in (contextlib.nullcontext(), engine.begin()):
        with place as given:
            found = publish("skip", given)
        assert refusals[::2] == found[::2]
        assert all(ids[key] in skipped for key, skipped in found)
    # With each of the six batches; the others have keys, and so were new once.
    assert {None: 1 + 6 * 300} == {
        key: count
        for key, count in Counter(m.key for m in jobs.messages().list(5000)).items()
        if count > 1
    }
    assert {"done", "also done"}.isdisjoint(m.key for m in jobs.messages().list(5000))


def test_roles_reach_groups(owner: QueueService, logins: Logins) -> None:
    """A publisher gives the group; a consumer claims by it, also what waits for others."""
    orders = owner.create_queue("orders", archive="all", group_limit=1)
    owner.roles.install(reply_queues=["replies"], prefix=logins.prefix)
    with logins.service("publisher") as service:
        service.queue("orders").publish_many([Publication(n, group="a") for n in range(5)])
        with pytest.raises(NotPermitted):
            service.create_queue("orders", group_limit=2)
    with logins.service("consumer") as service:
        mine = service.queue("orders")
        [message] = mine.consume()
        assert (0, "a") == (message.payload, message.group)
        # Those behind it wait.
        for _ in range(3):
            mine.consume()
        message.ack()
    assert [(0, "a")] == [(each.payload, each.group) for each in orders.archive.messages().list()]
    with logins.service("operator") as service:
        assert 2 == service.create_queue("orders", group_limit=2).settings.group_limit
        with pytest.raises(NotPermitted, match="None of the roles may create, alter or drop"):
            service.create_queue("copies", group_limit=1)


def test_a_consumer_consumes_and_does_nothing_else(owner: QueueService, logins: Logins) -> None:
    """Every way to settle, the heartbeat, the reaper and a worker."""
    published = owner.queue("jobs")
    published.publish_many([{"n": n} for n in range(8)])
    for key in ("a", "b"):
        published.publish({"n": 9}, key=key)
    for name in ("copies", "old"):
        owner.queue(name).publish({"n": 1})
    service = logins.service("consumer", reaper_interval=0.05)
    with service:
        jobs, copies = jobs_of(service), service.queue("copies")
        service.reap()
        batch = jobs.consume(10)
        [before] = service.consumers()
        parts_of(service).consumer.heartbeat()
        [after] = service.consumers()
        assert after.heartbeat_at > before.heartbeat_at
        assert 10 == len(batch)
        batch[0].extend(30)
        batch[0].ack()
        batch[1].nack("no")
        batch[2].release()
        batch[3].reject("never")
        jobs.ack(batch[4:7])
        jobs.release(jobs.exchange(batch[7:8], 1))
        jobs.release(batch[8:9])
        batch[9].ack()
        copies.consume()[0].reject("never")
        engine = parts_of(owner).connections.engine
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE queue_over_sql_queues SET used_at = 1 WHERE used_at > 1")
            )
        old = text("SELECT name FROM queue_over_sql_queues WHERE used_at = 1")

        def is_noted() -> bool:
            service.reap()
            with engine.connect() as connection:
                return connection.execute(old).first() is None

        wait_until(is_noted)
        service.queue("old").consume()[0].ack()
        wait_until(
            lambda: service.reap() is not None and not owner.queue("old").archive.messages().count()
        )
        query = Query(jobs, apart=True)
        assert query.batch()
        query.batch()
        query.consumer.drop()
        lapsing = jobs.consume(1, lease=0.01)
        wait_until(
            lambda: service.reap() is not None and not jobs.messages(status="claimed").first()
        )
        del lapsing
        errors = refused(
            lambda: jobs.publish({"n": 1}),
            lambda: jobs.publish_many([{"n": 1}]),
            jobs.pause,
            lambda: jobs.messages().prioritize(front=True) and None,
            lambda: service.schedules.add("often", "jobs", {}, every=60),
            lambda: service.drop_queue("jobs"),
        )
        # An ack deletes, so whoever may ack may do this.
        owner.queue("jobs").publish_many([{"n": 1}, {"n": 2}])
        assert jobs.cancel(jobs.messages().list()[0].id)
        assert jobs.purge() > 0
    assert ("publisher", "operator") == errors[0].roles
    assert ("INSERT",) == errors[0].rights
    assert [] == owner.consumers()


def test_an_upgrade_keeps_the_rights_of_roles(
    owner: QueueService,
    logins: Logins,
    make_service: MakeService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also on a table and on columns that the earlier release had not."""
    owner.roles.install(["jobs", "copies"], reply_queues=["replies"], prefix=logins.prefix)
    for table in ("queue_jobs", "queue_jobs_archive"):
        logins.run(f"ALTER TABLE {table} DROP COLUMN last_traceback")
    logins.run("UPDATE queue_over_sql_queues SET schema_version = 1 WHERE name = 'jobs'")
    with pytest.raises(QueueSchemaMismatch, match="migrate first"):
        owner.roles.install(["jobs"], prefix=logins.prefix)
    others = "".join(owner.roles.statements())
    assert "queue_copies" in others
    assert "queue_jobs" not in others
    logins.run("DROP TABLE queue_over_sql_history")
    with make_service() as upgraded:
        assert [] == upgraded.migrations.pending()
        upgraded.queue("jobs").publish(1)
        again = upgraded.roles.install(["jobs"], reply_queues=["replies"], prefix=logins.prefix)
    assert 0 == again.changes
    service = logins.service("consumer")
    with service:
        [message] = jobs_of(service).consume()
        failure = ValueError("no")
        with contextlib.suppress(ValueError):
            raise failure
        message.nack(failure, delay=0)
        assert "ValueError" in str(service.queue("jobs").last_traceback(message.id))
        [message] = service.queue("jobs").consume()
        message.ack()
        read_history(service, since=60)
    assert not [each for each in caplog.messages if "could not grant" in each]


def test_a_worker_runs_under_a_consumer(owner: QueueService, logins: Logins) -> None:
    """Transactional handlers that keep results; what does not fit its kind, or is restored."""
    service = logins.service("consumer", reaper_interval=0.05)
    done: list[Any] = []
    worker = service.worker(concurrency=2)

    @worker.handle("jobs", transactional=True, keep_result=True)
    def handle(message: Message, connection: Any) -> Any:
        del connection
        done.append(message.payload)
        return message.payload

    running = threading.Thread(target=worker.run)
    running.start()
    published = owner.queue("jobs").publish_many([{"n": n} for n in range(20)])
    wait_until(lambda: len(done) >= 20 and not owner.queue("jobs").stats().claimed)
    results = [owner.queue("jobs").result(each.id, wait=60)["n"] for each in published]
    assert list(range(20)) == results == sorted(each["n"] for each in done)
    worker.stop()
    running.join()
    assert 0 == owner.queue("jobs").stats().ready
    unfit = owner.queue("jobs").publish({}, kind="Order").id
    with logins.again("consumer") as reading:
        jobs = reading.create_queue("jobs", archive="all", dedup_window=60, kinds=[Order])
        assert [] == jobs.consume()
        assert "unfit_since" in owner.queue("jobs").messages().list()[0].headers
        owner.queue("jobs").edit(unfit, payload={"id": 1})
        [message] = jobs.consume()
        # As the reaper does for what several consumers held that died together.
        context, claim = core_of(jobs).context, claim_of(message)
        assert claim is not None
        held = Settlement([unfit], claim, error="died")
        assert {unfit} == context.run(lambda c: restore(c, context.sql, held, 3))
    assert 4 == owner.queue("jobs").messages().list()[0].max_attempts


def test_an_operator_moves_messages_but_changes_no_tables(
    owner: QueueService, logins: Logins
) -> None:
    """Edits, holds, sends again, purges, pauses, reaps, fires; and publishes and consumes."""
    service = logins.service("operator")
    with service:
        jobs = jobs_of(service)
        first = jobs.publish({"n": 1}, key="k")
        jobs.publish({"n": 2}, key="k", on_conflict="replace")
        jobs.messages(key="k").hold()
        jobs.messages(key="k").unhold()
        jobs.messages().reschedule(delay=timedelta(0))
        jobs.messages().prioritize(front=True)
        jobs.consume()[0].reject("no")
        assert 1 == jobs.archive.messages().requeue()
        jobs.pause()
        jobs.resume()
        service.create_queue("jobs", max_attempts=9)
        service.create_topic("more").subscribe("jobs")
        service.drop_topic("more")
        service.schedules.add("often", "jobs", {}, every=3600)
        service.schedules.remove("often")
        service.reap()
        assert 1 == jobs.purge()
        assert not jobs.delete(first.id)
        errors = refused(
            lambda: service.create_queue("further"), lambda: service.drop_queue("jobs")
        )
    assert () == errors[0].roles
    assert "None of the roles may create" in str(errors[0])
    owner.queue("jobs").refresh()
    assert 9 == owner.queue("jobs").settings.max_attempts


def test_a_viewer_looks_and_changes_nothing(owner: QueueService, logins: Logins) -> None:
    """Messages, the archive, counts, consumers, schedules."""
    message = owner.queue("jobs").publish({"n": 1})
    service = logins.service("viewer")
    with service:
        jobs = jobs_of(service)
        assert 1 == jobs.stats().ready
        assert [{"n": 1}] == [each.payload for each in jobs.messages(payload={"n": 1}).list()]
        assert 0 == jobs.archive.messages().count()
        names = [queue.name for queue in service.queues()]
        assert ["copies", "jobs", "old", "replies", "waiting"] == names
        assert ["news"] == [topic.name for topic in service.topics()]
        assert [] == service.schedules.list()
        service.consumers()
        assert Reason.NO_CONSUMER is jobs.why(message.id).reason
        errors = refused(
            lambda: jobs.publish({}),
            jobs.consume,
            lambda: jobs.delete(message.id),
            lambda: jobs.messages().hold(),
            jobs.purge,
            jobs.pause,
        )
    assert ("publisher", "operator") == errors[0].roles
    assert 1 == owner.queue("jobs").stats().ready


def test_the_dashboard_runs_under_an_operator_and_shows_under_a_viewer(
    owner: QueueService, logins: Logins
) -> None:
    """Its owner makes tokens; the others let them in, and an operator writes the audit."""
    given = WebSettings()
    tables = WebStore(owner, given)
    assert tables.prepare()
    tables.add_token("ada", Role.ADMIN)
    assert owner.roles.install(prefix=logins.prefix).changes > 0
    services = {role: logins.service(role) for role in ("operator", "viewer")}
    stores = {}
    for role, service in services.items():
        stores[role] = store = WebStore(service, given)
        assert store.prepare(), store.problem
        assert ["ada"] == [token.name for token in store.tokens()]
        assert Snapshots(service).overview().problem is None
        found = exposition(DatabaseCollector(service)).decode()
        assert "queue_over_sql_up 1.0" in found
        assert 'queue_over_sql_dead_letters{queue="jobs"} 0.0' in found
        (error,) = refused(lambda: store.add_token("eve", Role.ADMIN))  # noqa: B023 - at once
        assert "queue_over_sql_web_tokens" == error.table
        assert () == error.roles
    stores["operator"].write_audit("ada", "operator", "pause", queue="jobs")
    assert 0 == stores["operator"].prune_audit()
    assert ["pause"] == [row.what for row in stores["viewer"].audit()]
    (error,) = refused(lambda: stores["viewer"].write_audit("ada", "viewer", "sign-in"))
    assert ("operator",) == error.roles
    assert stores["operator"].no_requests is None
    once = Idempotency(services["operator"], stores["operator"], given)
    answers = [once.once("key", ["a"], "body", lambda _: Answer(201, "1")) for _ in range(2)]
    assert [False, True] == [each.again for each in answers]
    assert 0 == once.prune()
    # A database of an earlier release lacks this table, and the login may not create it.
    logins.run("DROP TABLE queue_over_sql_web_requests")
    assert stores["operator"].prepare()
    with pytest.raises(Problem, match="queue_over_sql_web_requests is missing"):
        once.once("other", ["a"], "body", lambda _: Answer(201, "1"))
    publisher = WebStore(logins.service("publisher"), given)
    refused(publisher.tokens, publisher.audit)


@pytest.mark.usefixtures("owner")
def test_history_is_written_by_publishers_and_consumers(logins: Logins) -> None:
    """They add rows; those that are too old are left to who may delete them."""
    with logins.service("publisher", observer=History()) as publisher:
        publisher.queue("jobs").publish({"n": 1})
    with logins.service("consumer", observer=History()) as consumer:
        consumer.queue("jobs").ack(consumer.queue("jobs").consume())
    with logins.service("viewer") as viewer:
        (minute, *later) = read_history(viewer, 3600)
    for each in later:
        minute.add(each)
    assert 1 == minute.published
    assert 1 == minute.claimed
    assert 1 == minute.done


def test_schedules_are_fired_by_who_may_publish(owner: QueueService, logins: Logins) -> None:
    """A consumer's reaper leaves them; one whose login is a publisher, too, fires them."""
    owner.schedules.add("often", "jobs", {"tick": 1}, every=0.1)
    jobs = owner.queue("jobs")
    # The next instants of a minute ago are due.
    logins.run("UPDATE queue_over_sql_schedules SET next_at = next_at - 60000000")
    jobs.purge()
    with logins.service("consumer") as consumer:
        consumer.reap()
        assert 0 == jobs.messages().count()
    with logins.service("consumer", "publisher") as both:
        wait_until(lambda: both.reap() is not None and jobs.messages().count() > 0)


def test_a_publisher_asks_through_a_queue_that_is_there(
    owner: QueueService, logins: Logins
) -> None:
    """Without one it is told up front what to do, and nothing is published."""
    plain = logins.service("publisher")
    with pytest.raises(NotPermitted, match="reply_queue='replies'"):
        plain.queue("jobs").request({"n": 1}, timeout=5)
    assert 0 == owner.queue("jobs").messages().count()
    plain.stop()

    asking = logins.again("publisher", reply_queue="replies")
    server = logins.service("consumer")
    worker = server.worker(concurrency=1)

    @worker.handle("jobs")
    def answer(message: Message) -> None:
        message.reply({"double": 2 * message.payload["n"]})

    running = threading.Thread(target=worker.run)
    running.start()
    answers = [asking.queue("jobs").request({"n": n}, timeout=30).payload for n in range(3)]
    worker.stop()
    running.join()
    assert [{"double": 0}, {"double": 2}, {"double": 4}] == answers
    with pytest.raises(RequestTimeout) as late:
        asking.queue("jobs").request({"n": 9}, timeout=0.05)
    assert not late.value.withdrawn
    assert 0 == owner.queue("replies").messages().count()
    assert [] == [queue.name for queue in owner.queues(temporary=True) if queue.temporary]
    headers = {"reply_to": "replies", "correlation_id": "gone"}
    asking.queue("jobs").publish({"n": 1}, headers=headers)
    asking.stop()
    again = logins.again("consumer")
    found = again.queue("jobs").consume(5)
    [question] = [message for message in found if message.correlation_id == "gone"]
    outcomes = [question.reply({"n": n}).outcome for n in range(2)]
    assert ["created", "skipped"] == outcomes


def test_installing_twice_changes_nothing_and_print_is_what_runs(
    owner: QueueService, logins: Logins
) -> None:
    """What is printed, run by hand under another prefix, leaves nothing for install to do."""
    again = owner.roles.install(reply_queues=["replies"], prefix=logins.prefix)
    assert 0 == again.changes
    printed = owner.roles.statements(reply_queues=["replies"], prefix=logins.prefix)
    assert tuple(printed) == again.statements
    other = f"{logins.prefix}x_"
    for statement in owner.roles.statements(prefix=other):
        logins.run(statement)
    assert 0 == owner.roles.install(prefix=other).changes
    owner.create_queue("later")
    assert owner.roles.install(prefix=other).changes > 0
    with pytest.raises(QueueNotFound):
        owner.roles.install(["nowhere"], prefix=other)


def test_roles_for_chosen_queues_reach_no_others(owner: QueueService, logins: Logins) -> None:
    """A publisher of one queue is refused the other."""
    logins.prefix = f"{logins.prefix}y_"
    owner.roles.install(["copies"], prefix=logins.prefix)
    service = logins.service("publisher")
    service.queue("copies").publish({"n": 1})
    (error,) = refused(lambda: service.queue("jobs").publish({"n": 1}))
    assert "queue_jobs" == error.table
    service.stop()


def test_a_publisher_counts_but_does_not_read_the_archive(
    owner: QueueService, logins: Logins
) -> None:
    """``list`` and ``stats`` show its queues; finished messages have a count and no content."""
    jobs = owner.queue("jobs")
    jobs.publish_many([1, 2])
    jobs.consume()[0].reject("secret")
    service = logins.service("publisher")
    stats = service.queue("jobs").stats()
    assert 1 == stats.ready
    assert 1 == stats.archived
    assert 1 == stats.rejected
    url = str(logins.url("publisher").render_as_string(hide_password=False))
    counted = {
        each["queue"]: each["archived"] for each in succeed("stats", "--json", url=url).records
    }
    assert 1 == counted["jobs"]
    assert {"copies", "jobs", "old", "replies", "waiting"} == set(counted)
    listed = {each["queue"] for each in succeed("list", "--json", url=url).records}
    assert set(counted) == listed
    [error] = refused(lambda: service.queue("jobs").archive.messages().list())
    assert ("consumer", "operator", "viewer") == error.roles


def test_an_owner_without_the_right_to_create_roles(database: TestDatabase, logins: Logins) -> None:
    """It is given the statements for an administrator; after them it grants by itself."""
    name = f"{logins.prefix}login_owner"[:20]
    if database.engine == "postgresql":
        logins.run(f"CREATE ROLE {name} LOGIN")
        logins.run(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    else:
        logins.run(f"CREATE USER '{name}'@'%'")
        logins.run(f"CREATE DATABASE {name}")
        logins.run(f"GRANT ALL ON {name}.* TO '{name}'@'%' WITH GRANT OPTION")
        logins.run(f"GRANT USAGE ON *.* TO '{name}'@'%'")
    url = make_url(database.url).set(username=name, password="")
    if database.engine != "postgresql":
        url = url.set(database=name)
    try:
        with QueueService(url, schema=name) as service:
            service.create_queue("jobs")
            with pytest.raises(NotPermitted) as error:
                service.roles.install(prefix=logins.prefix)
            script = re.findall(r"CREATE ROLE \w+;", str(error.value))
            assert 4 == len(script)
            for statement in script:
                logins.run(statement)
            service.roles.install(prefix=logins.prefix)
            logins.service("viewer").stop()
            theirs = logins.url("viewer").set(database=url.database)
            with QueueService(theirs, schema=name) as viewer:
                assert 0 == viewer.queue("jobs").stats().ready
    finally:
        if database.engine != "postgresql":
            logins.run(f"DROP DATABASE {name}")


def test_a_login_that_may_read_no_queue_is_told_so(owner: QueueService, logins: Logins) -> None:
    """Not that there is none. Their names and settings are in a table of all queues."""
    owner.roles.install(["copies"], prefix=f"{logins.prefix}some_")
    service = logins.service("some_viewer")
    assert 0 == service.queue("copies").stats().ready
    owner.drop_queue("copies")
    url = str(logins.url("some_viewer").render_as_string(hide_password=False))
    ended, listed = run("stats", url=url), run("list", url=url)
    assert 1 == ended.exit_code, ended.err
    assert "SELECT on queue_" in ended.err
    assert "no queue yet" not in ended.err
    assert (0, True) == (listed.exit_code, "jobs" in listed.out)


@pytest.mark.engines("sqlite", "h2")
def test_engines_without_roles_say_so(make_service: MakeService) -> None:
    """And say what to do instead."""
    with pytest.raises(UnsupportedByEngine, match=r"docs/roles\.md"):
        make_service().roles.install()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_refusal_that_names_an_index_tells_its_table() -> None:
    """Rights are on tables, so that is what the error must name."""
    index = "queue_jobs_archive_err_ix"
    error = not_permitted("queue_", f"permission denied for {index}", f"REINDEX INDEX {index}")
    assert "queue_jobs" == error.table


def test_a_consumers_dead_letters_stay_unless_it_may_publish(
    owner: QueueService, logins: Logins
) -> None:
    """A consumer alone ends its message, which stays in the archive."""
    dead = owner.queue("copies")
    owner.create_queue("jobs", dead_letter_queue="copies")
    for roles, copies in ((["consumer"], 0), (["consumer", "publisher"], 1)):
        owner.queue("jobs").publish("x")
        jobs = logins.service(*roles).queue("jobs")
        jobs.reject(jobs.consume(), "no")
        assert copies == dead.messages().count()
    assert 2 == owner.queue("jobs").archive.messages().count()
