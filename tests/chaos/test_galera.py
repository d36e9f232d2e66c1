"""Two nodes of a Galera cluster of MariaDB, each with clients of its own.

A node does not know the row locks of the other one: two consumers may claim a message at once. The
cluster refuses the later COMMIT, so that only one of them has it.
"""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from queue_over_sql import QueueNotFound, QueueService
from queue_over_sql.testing.servers import MariadbServer
from queue_over_sql.testing.servers.process import free_port
from tests.chaos.account import (
    archived_tokens,
    create_effects,
    effects,
    live_tokens,
)
from tests.chaos.proxy import Proxy
from tests.chaos.roles import consumer, steady
from tests.chaos.test_delivery import Load, check_exactly_once, finish, finish_all, payloads
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from tests.chaos.processes import Crew, Process

PROVIDER: Final = next(
    (each for each in map(Path, ("/usr/lib/galera", "/usr/lib64/galera-4")) if each.is_dir()), None
)
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.full,
    pytest.mark.timeout(240),
    pytest.mark.engines("mariadb"),
    pytest.mark.skipif(
        PROVIDER is None or shutil.which("rsync") is None,
        reason="needs Galera's library and rsync: install the packages galera-4 and rsync",
    ),
]
LOAD: Final = Load(600, 400, (1, 5, 10, 50))


class Node(MariadbServer):
    """A node, the first one of a cluster or one that joins another.

    The first one weighs more, so it goes on alone when the other one is killed.
    """

    def __init__(self, first: Node | None = None) -> None:
        super().__init__()
        self._first = first
        self._group, self._receiving, self._copying = free_port(), free_port(), free_port()

    def command(self) -> list[str]:
        """Add what the library wants to know."""
        address = f"127.0.0.1:{self._group}"
        options = {
            "base_host": "127.0.0.1",
            "base_port": self._group,
            "gmcast.listen_addr": f"tcp://{address}",
            "ist.recv_addr": f"127.0.0.1:{self._receiving}",
            "gcache.size": "32M",
            "pc.weight": 1 if self._first else 2,
        }
        peer = f"127.0.0.1:{self._first._group}" if self._first else ""
        return [
            *super().command(),
            *([] if self._first else ["--wsrep-new-cluster"]),
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}/libgalera_smm.so",
            "--wsrep-cluster-name=queues",
            f"--wsrep-cluster-address=gcomm://{peer}",
            f"--wsrep-node-address={address}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self._copying}",
            f"--wsrep-provider-options={';'.join(f'{k}={v}' for k, v in options.items())}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Both nodes, with the database ``queues``."""
    with Node() as first, Node(first) as second:
        first.create_database("queues")
        yield first, second


@contextlib.contextmanager
def looking(node: Node) -> Iterator[Engine]:
    """Plain SQLAlchemy on a node."""
    engine = create_engine(node.url("queues"), poolclass=NullPool)
    yield engine
    engine.dispose()


def begin(process: Process) -> Process:
    """Let a process that is ready do its work."""
    process.expect("ready")
    process.tell("go")
    return process


def refused_on(node: Node) -> int:
    """How many transactions the cluster has undone on a node, for those of the other one."""
    with looking(node) as sql, sql.connect() as connection:
        rows = connection.exec_driver_sql(
            "SHOW STATUS WHERE variable_name IN ('wsrep_local_cert_failures',"
            " 'wsrep_local_bf_aborts')"
        )
        return sum(int(row[1]) for row in rows)


def create_queue(nodes: tuple[Node, Node]) -> list[QueueService]:
    """A service on each node; returns when both have the queue."""
    services = [QueueService(node.url("queues")) for node in nodes]
    services[0].create_queue("jobs", archive="all")

    def is_there() -> bool:
        with contextlib.suppress(QueueNotFound):
            return bool(services[1].queue("jobs"))
        return False

    # What a node commits comes to the other one a little later.
    eventually(is_there, "the queue on the other node")
    return services


def publish_all(queue: Queue, messages: list[dict[str, str]]) -> None:
    """Publish one by one."""
    for each in messages:
        queue.publish(each)


def test_consumers_of_two_nodes_get_each_message_once(nodes: tuple[Node, Node], crew: Crew) -> None:
    """Publishers and consumers on both, and no caller is told of what the cluster refuses."""
    services = create_queue(nodes)
    queues = [service.queue("jobs") for service in services]
    queues[0].publish_many(payloads(LOAD.early_tokens))
    journals = str(crew.journals)
    consumers = [
        crew.spawn(consumer.Arguments(node.url("queues"), journals, batch=size))
        for node in nodes
        for size in LOAD.batches
    ]
    for process in consumers:
        begin(process)
    late = payloads(LOAD.late_tokens)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(publish_all, queues, (late[::2], late[1::2])))
    with looking(nodes[0]) as sql:
        finish_all(LOAD, consumers, sql)
        check_exactly_once(LOAD, crew.account(), sql)
    for service in services:
        service.stop()
    assert sum(map(refused_on, nodes)) > 0


def test_a_killed_node_takes_no_message_with_it(nodes: tuple[Node, Node], crew: Crew) -> None:
    """Its clients go on at the other node. Each effect comes once."""
    first, second = nodes
    for service in create_queue(nodes):
        service.stop()
    with contextlib.closing(Proxy(second.url("queues"))) as proxy, looking(first) as sql:
        create_effects(sql)

        def made() -> list[str]:
            # The first node refuses statements until it has found out that the other one is gone.
            with contextlib.suppress(DBAPIError):
                return [token for token, _ in effects(sql)]
            return []

        publishers, workers = (
            [
                begin(crew.spawn(steady.Arguments(url, str(crew.journals), publishes=publishes)))
                for url in (first.url("queues"), proxy.url)
            ]
            for publishes in (True, False)
        )
        eventually(lambda: len(made()) > 100, "work on both", within=60)
        second.kill()
        proxy.lead_to(first.url("queues"))
        before = len(made())
        eventually(lambda: len(made()) > before + 200, "work goes on", within=90)
        finish(publishers)
        eventually(lambda: not live_tokens(sql), "all is handled", within=60)
        finish(workers)
        assert [] == crew.account().check(sql, effects={"jobs": made()})
        assert sorted(made()) == sorted(archived_tokens(sql, "done"))
