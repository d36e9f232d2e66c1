"""A switchover: the address leads to another server; the old one still answers, but only reads."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import MetaData, Table, create_engine, delete, insert, make_url, select

from queue_over_sql import DatabaseRefused, DatabaseUnavailable, QueueService
from queue_over_sql.testing.servers import MariadbServer, MysqlServer, PostgresqlServer
from tests.chaos.proxy import Proxy
from tests.chaos.standby import Standby, execute
from tests.contract.bridge import Bridge
from tests.contract.queue_state import payloads
from tests.contract.worker.running_worker import running
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]
OFF = "ALTER SYSTEM SET default_transaction_read_only = on"


@dataclasses.dataclass
class Pair:
    """Two servers, of which the second only reads at first.

    Attributes:
        old: URL of the first.
        new: URL of the second.
        demote: lets the first only read; it keeps its connections.
        promote: lets the second write.
    """

    old: str
    new: str
    demote: Callable[[], None]
    promote: Callable[[], None]


@pytest.fixture
def pair(engine_name: str) -> Iterator[Pair]:
    """A primary and its standby on PostgreSQL; two servers elsewhere."""
    with contextlib.ExitStack() as stack:
        if engine_name == "postgresql":
            primary = stack.enter_context(PostgresqlServer())
            old = primary.create_database("switched")
            standby = Standby(primary)
            stack.callback(standby.close)
            standby.follow()
            new = standby.url("switched")
            yield Pair(
                old,
                new,
                lambda: execute(old, OFF, "SELECT pg_reload_conf()"),
                lambda: execute(new, "SELECT pg_promote()"),
            )
            return
        kind = MariadbServer if engine_name == "mariadb" else MysqlServer
        urls = []
        for _ in range(2):
            root = stack.enter_context(kind()).create_database("switched")
            app = make_url(root).set(username="app").render_as_string(hide_password=False)
            # A login without the right to write to a server that only reads.
            execute(
                root,
                "CREATE USER app@'127.0.0.1'",
                "GRANT ALL ON switched.* TO app@'127.0.0.1'",
            )
            service = QueueService(app)
            service.create_queue("jobs")
            service.create_queue("probe")
            service.stop()
            urls.append((root, app))
        (old_root, old), (new_root, new) = urls
        execute(new_root, "SET GLOBAL read_only = 1")

        def promote() -> None:
            # Else a reaper takes the claims of consumers that the new server does not know.
            copy_consumers(old_root, new_root)
            execute(new_root, "SET GLOBAL read_only = 0")

        yield Pair(old, new, lambda: execute(old_root, "SET GLOBAL read_only = 1"), promote)


def copy_consumers(old: str, new: str) -> None:
    """Do for the consumers what replication does."""
    with contextlib.ExitStack() as stack:
        engines = [create_engine(url) for url in (old, new)]
        for engine in engines:
            stack.callback(engine.dispose)
        consumers = Table("queue_over_sql_consumers", MetaData(), autoload_with=engines[0])
        with engines[0].connect() as connection:
            rows = connection.execute(select(consumers)).mappings().all()
        with engines[1].begin() as connection:
            connection.execute(delete(consumers))
            if rows:
                connection.execute(insert(consumers), [dict(row) for row in rows])


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql", "mariadb")
@pytest.mark.parametrize("face", ["threads", pytest.param("asyncio", marks=pytest.mark.full)])
def test_kept_connections_follow_a_switchover(pair: Pair, face: str) -> None:
    """A service whose connections to the old server live on publishes and handles on the new one.

    Meanwhile it says that the server only reads, and no attempt is counted for that.
    """
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(pair.old)))
        service: Any
        if face == "threads":
            service = QueueService(proxy.url, consumer_timeout=10.0, reaper_interval=0.5)
        else:
            bridge = stack.enter_context(contextlib.closing(Bridge()))
            url = proxy.url.replace("+pymysql", "").replace("+psycopg", "")
            service = bridge.service(url, consumer_timeout=10.0, reaper_interval=0.5)
        stack.callback(service.stop)
        queue, probe = service.create_queue("jobs"), service.create_queue("probe")
        seen: list[tuple[int, int]] = []
        worker = service.worker(concurrency=2, poll_interval=(0.01, 0.1))

        def handle(message: Message, connection: Any) -> None:
            connection.exec_driver_sql("SELECT 1").close()
            seen.append((message.payload, message.attempt))

        worker.handle("jobs", transactional=True)(handle)
        with running(worker):
            queue.publish_many(list(range(10)))
            eventually(lambda: len(seen) >= 10 and not queue.stats().live, "handled before")
            pair.demote()
            proxy.lead_to(pair.new)

            def says_so() -> bool:
                try:
                    probe.publish(0)
                except DatabaseUnavailable as error:
                    return "only reads" in str(error)
                return False

            eventually(says_so, "both servers only read")
            pair.promote()

            def published() -> bool:
                with contextlib.suppress(DatabaseUnavailable):
                    return bool(queue.publish(10, key="10", on_conflict="skip"))
                return False

            eventually(published, "it publishes on the new server")
            queue.publish_many(list(range(11, 20)))
            eventually(lambda: len(seen) >= 20 and not queue.stats().live, "handled after")
        assert sorted(seen) == [(number, 1) for number in range(20)]


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql", "mariadb")
def test_who_cannot_ask_why_a_server_only_reads_waits(pair: Pair) -> None:
    """The old server only reads, and the address leads nowhere yet: this refuses no message.

    It was an error which said that the database refuses the statement. A worker that started in
    such a moment ended, and for a transactional handler it was a failed attempt.
    """
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(pair.old)))
        service = QueueService(proxy.url)
        stack.callback(service.stop)
        service.create_queue("jobs")
        service.create_queue("probe")
        connections = service._parts.connections

        def told() -> str | None:
            try:
                with connections.errors.translated():
                    connection.exec_driver_sql("DELETE FROM queue_probe")
            except DatabaseUnavailable as error:
                return str(error)
            finally:
                connection.rollback()
            return None

        connection = stack.enter_context(connections._connect())
        assert told() is None
        pair.demote()
        proxy.lead_to(make_url(pair.old).set(port=1).render_as_string(hide_password=False))
        assert "check which server" in (eventually(told, "it only reads") or "")


class Watched(Proxy):
    """Calls a function before it passes on the third refusal of a server that only reads."""

    def __init__(self, url: str, act: Callable[[], None]) -> None:
        self._act, self.refused = act, 0
        super().__init__(url)
        if "pymysql" in url:
            # It encrypts by default where the server can.
            open_url = make_url(self.url).update_query_dict({"ssl_disabled": "true"})
            self.url = open_url.render_as_string(hide_password=False)

    def _pass_on(self, answer: bytes) -> bytes:
        if b"read-only" in answer:
            self.refused += 1
            if self.refused == 3:
                self._act()
        return super()._pass_on(answer)


@pytest.mark.engines("mysql", "mariadb")
@pytest.mark.default_on("mariadb")
def test_a_server_that_writes_again_just_now_refuses_nothing(pair: Pair) -> None:
    """It refused to write, but when it is asked for the reason, it only reads no more.

    That was an error which said that the database refuses the statement, and for a transactional
    handler a failed attempt, which made an innocent dead letter of its message.
    """
    root = make_url(pair.old).set(username="root").render_as_string(hide_password=False)

    def restore() -> None:
        execute(root, "SET GLOBAL read_only = 0")

    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Watched(pair.old, restore)))
        publisher = QueueService(proxy.url)
        stack.callback(publisher.stop)
        queue = publisher.create_queue("jobs", max_attempts=1)
        publisher.create_queue("probe")
        service = QueueService(pair.old, consumer_timeout=10.0)
        stack.callback(service.stop)
        queue.publish("before")
        pair.demote()
        proxy.refused = 0
        queue.publish("meanwhile")
        assert 3 == proxy.refused
        worker = service.worker(concurrency=1, poll_interval=(0.01, 0.1))
        tries: list[tuple[str, int]] = []

        @worker.handle("jobs", transactional=True)
        def handle(message: Message, connection: Any) -> None:
            tries.append((message.payload, message.attempt))
            if len(tries) == 1:
                pair.demote()
            try:
                connection.exec_driver_sql("DELETE FROM queue_probe").close()
            except Exception:
                if len(tries) == 2:
                    restore()
                raise

        with running(worker):
            eventually(lambda: not queue.stats().live, "both are handled")
        assert [("before", 1)] * 3 + [("meanwhile", 1)] == tries
        assert not queue.archive.messages(status="failed").list()


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_login_that_only_reads_is_refused(database: TestDatabase) -> None:
    """By a setting of the login: it is named, and nothing waits for it to change."""
    url = make_url(database.url)
    if database.engine == "postgresql":
        option, named = {"options": "-c default_transaction_read_only=on"}, "default_transaction_"
    else:
        option, named = (
            {"init_command": "SET SESSION TRANSACTION READ ONLY"},
            "READ ONLY by default",
        )
    through = url.update_query_dict(option).render_as_string(hide_password=False)
    service = QueueService(database.url)
    service.create_queue("jobs")
    service.stop()
    service = QueueService(through)
    with pytest.raises(DatabaseRefused, match=named):
        service.queue("jobs").publish(1)
    service.stop()


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql")
def test_callers_connections_follow_a_switchover(pair: Pair) -> None:
    """A caller's new connection is accepted, and one to the old server is told to go.

    The service has not written since, so its own sessions still lead to the old server. It said
    that the new connection belongs to another database. Of the old one it said later that USE had
    moved it, which is no help. And while that one only reads, what finds nothing there says so: a
    take from a queue with rules, and a requeue, were silent.
    """
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(pair.old)))
        service = QueueService(proxy.url)
        stack.callback(service.stop)
        queue = service.create_queue("jobs")
        engine = create_engine(proxy.url, pool_pre_ping=True)
        stack.callback(engine.dispose)
        with engine.begin() as caller:
            queue.publish("before", connection=caller)
            assert ["before"] == payloads(queue.take(5, connection=caller))
        rules: dict[str, Any] = {"group_limit": 1, "queue_limit": 1, "queue_rate": "9/s"}
        ruled = [service.create_queue(name, **{name: value}) for name, value in rules.items()]
        kept = stack.enter_context(engine.connect())
        pair.demote()
        proxy.lead_to(pair.new)
        pair.promote()

        def is_refused(act: Callable[..., Any]) -> bool:
            try:
                with kept.begin():
                    assert not act(connection=kept)
            except DatabaseRefused as error:
                return "open a new connection" in str(error)
            return False

        acts: list[Any] = [partial(each.take, 5) for each in (queue, *ruled)]
        for act in [*acts, queue.archive.messages().requeue]:
            eventually(partial(is_refused, act), "the old one only reads")

        def published() -> bool:
            # The standby may still be on its way.
            with contextlib.suppress(DatabaseRefused), engine.begin() as caller:
                return bool(queue.publish("after", connection=caller))
            return False

        eventually(published, "the new one writes")
        with pytest.raises(DatabaseUnavailable, match="Open a new connection"), kept.begin():
            queue.take(5, connection=kept)
        assert ["after"] == payloads(queue.consume())
