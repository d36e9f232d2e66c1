"""The faults: what is done to a ground, and when it is over."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from queue_over_sql.testing.servers import MariadbServer, MysqlServer, PostgresqlServer
from scripts.benchmarks.faults_ground import CONSUMER_TIMEOUT, FAKETIME, Ended, Ground
from tests.chaos.account import effects, live_tokens
from tests.chaos.standby import Standby, execute
from tests.dialects.postgresql.pgbouncer import PgBouncer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from queue_over_sql.testing.servers import PrivateServer

ALL = ("sqlite", "postgresql", "mysql", "mariadb", "h2")
SERVERS = ("postgresql", "mysql", "mariadb", "h2")
STEPPED = ("postgresql", "mysql", "mariadb")
"""Engines whose clock libfaketime can step without stepping the timers of Python or Java."""
HOUR = 3600
NO_SERVER = "it has no server"
_MEBIBYTE = b"x" * 1_048_576


def on(url: str) -> AbstractContextManager[Connection]:
    """A connection of its own, without transactions."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    return engine.connect()


def server_of(ground: Ground) -> PrivateServer:
    """The ground's server."""
    if ground.server is None:
        raise RuntimeError(NO_SERVER)
    return ground.server


def holder(ground: Ground) -> tuple[Any, str]:
    """A worker that holds messages, taken from the others; another one takes its place."""
    ground.add_worker()
    victim = ground.workers.pop(0)
    name = f"process-{victim.pid}"
    ground.watch.until(lambda: bool(ground.watch.held_by(name)), "it holds a message")
    time.sleep(ground.luck.uniform(0.0, 0.05))
    return victim, name


def unfinished(ground: Ground, name: str, locking: str = "") -> set[int]:
    """What a worker that does nothing any more had claimed, and not finished without a note."""
    held = ground.watch.held_by(name)
    with ground.sql.connect() as connection:
        live = connection.execute(text(f"SELECT id FROM queue_jobs{locking}")).scalars().all()
    return held.intersection(live)


def kill(ground: Ground) -> Ended:
    """Kill a worker that holds messages."""
    while True:
        victim, name = holder(ground)
        victim.kill()
        if held := unfinished(ground, name):
            return Ended(victim.killed_at or 0.0, held)


def freeze(ground: Ground) -> Ended:
    """Stop a worker for longer than its time limit; it goes on when others have what it held.

    Not one between its ack and its commit: that keeps the row locked until its session ends.
    """
    ground.leased = False
    while True:
        victim, name = holder(ground)
        ground.workers.append(victim)
        victim.freeze()
        at = time.monotonic()
        if held := unfinished(ground, name, " FOR UPDATE SKIP LOCKED"):
            break
        victim.thaw()
        ground.workers.remove(victim)
        victim.tell("stop")
    ground.watch.recovery(at, held)
    time.sleep(max(0.0, at + CONSUMER_TIMEOUT + 1.0 - time.monotonic()))
    victim.thaw()
    return Ended(at, held)


def kill_server(ground: Ground) -> Ended:
    """Kill the server, and start it again."""
    server = server_of(ground)
    server.kill()
    time.sleep(ground.luck.uniform(0.2, 1.0))
    server.start()
    return Ended(time.monotonic())


def fall_silent(ground: Ground) -> Ended:
    """Packets vanish for a second; then new connections work, and the server drops the old ones."""
    proxy = ground.proxy
    if proxy is None:
        raise RuntimeError(NO_SERVER)
    proxy.fall_silent()
    time.sleep(1.0)
    proxy.end_at_server()
    proxy.recover()
    return Ended(time.monotonic())


def cut_answers(ground: Ground) -> Ended:
    """Cut a connection within an answer, ten times, wherever that is."""
    proxy = ground.proxy
    if proxy is None:
        raise RuntimeError(NO_SERVER)
    for _ in range(10):
        proxy.cut_after(ground.luck.randrange(600), once=True)
        time.sleep(ground.luck.uniform(0.02, 0.1))
    proxy.cut_after(math.inf)
    return Ended(time.monotonic())


def step(seconds: int) -> Callable[[Ground], Ended]:
    """Step the database's clock, and back when the work goes on."""

    def act(ground: Ground) -> Ended:
        ground.step(0)
        ground.go_on()
        ground.step(seconds)
        return Ended(time.monotonic())

    return act


def fill_disk(ground: Ground) -> Ended:
    """Let the disk of the data be full for a second."""
    # Heartbeats fail meanwhile. So a consumer may expire sooner after a claim than else.
    ground.leased = False
    ballast = ground.place / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(_MEBIBYTE) == len(_MEBIBYTE):
            pass
    # What is left is less than a block of a file.
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(b"x" * 512) == 512:  # noqa: PLR2004 - as above
            pass
    time.sleep(1.0)
    ballast.unlink()
    if ground.server is not None:
        if ground.engine == "h2":
            # It may have locked its file against itself, and opens it again only when it is new.
            ground.server.stop()
        # Some servers end by themselves; a supervisor starts them.
        ground.server.start()
    return Ended(time.monotonic())


def read_only(ground: Ground) -> Ended:
    """Let the server only read for a second."""
    if ground.engine == "postgresql":
        switch = "ALTER SYSTEM SET default_transaction_read_only = {}"
        execute(ground.root, switch.format("on"), "SELECT pg_reload_conf()")
        time.sleep(1.0)
        # A session that only reads may still end that.
        execute(
            ground.root, "SET default_transaction_read_only = off", switch.format("off"),
            "SELECT pg_reload_conf()",
        )  # fmt: skip
    else:
        execute(ground.root, "SET GLOBAL read_only = 1")
        time.sleep(1.0)
        execute(ground.root, "SET GLOBAL read_only = 0")
    return Ended(time.monotonic())


def exhaust(ground: Ground) -> Ended:
    """End all connections, and take the places of all of them for a second."""
    postgresql = ground.engine == "postgresql"
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(on(ground.root))
        if postgresql:
            root.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'faults'"
                " AND pid <> pg_backend_pid()"
            ).close()
        else:
            root.exec_driver_sql("SET GLOBAL max_connections = 10").close()
            listed = "SELECT id FROM information_schema.processlist WHERE user = 'app'"
            for number in root.exec_driver_sql(listed).scalars().all():
                with contextlib.suppress(SQLAlchemyError):
                    root.exec_driver_sql(f"KILL {number}").close()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            try:
                stack.enter_context(on(ground.url))
            except SQLAlchemyError:
                time.sleep(0.02)
        if not postgresql:
            root.exec_driver_sql("SET GLOBAL max_connections = 300").close()
    return Ended(time.monotonic())


def restart_pooler(ground: Ground) -> Ended:
    """Kill PgBouncer, and start it again."""
    ground.pooler.kill()
    time.sleep(ground.luck.uniform(0.2, 1.0))
    ground.pooler.start()
    return Ended(time.monotonic())


def storm(ground: Ground) -> Ended:
    """For a second and a half, four sessions lock messages in all orders, and deadlock."""
    end = time.monotonic() + 1.5
    same = text("UPDATE queue_jobs SET last_error = last_error WHERE id = :id")

    def lock(seed: float) -> None:
        engine = create_engine(ground.root, poolclass=NullPool)
        while time.monotonic() < end:
            with contextlib.suppress(SQLAlchemyError), engine.begin() as connection:
                found = connection.execute(text("SELECT id FROM queue_jobs")).scalars().all()
                for id_ in sorted(found, key=lambda each: hash((each, seed, time.monotonic())))[:5]:
                    connection.execute(same, {"id": id_})

    threads = [threading.Thread(target=lock, args=(ground.luck.random(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Ended(time.monotonic())


def restore(ground: Ground) -> Ended:
    """Put a copy of the data back that is some seconds old, while all processes run."""
    server, backup = server_of(ground), ground.folder / "backup"
    everybody = [*ground.workers, *ground.publishers]
    for process in everybody:
        process.freeze()
    there = {*live_tokens(ground.sql), *(token for token, _ in effects(ground.sql))}
    server.stop()
    shutil.rmtree(backup, ignore_errors=True)
    # The server's account must own it.
    server.prepare("cp", "-Rp", server.data, server.folder / "backup")
    server.start()
    for process in everybody:
        process.thaw()
    time.sleep(2.0)
    server.stop()
    shutil.rmtree(server.data)
    server.prepare("mv", server.folder / "backup", server.data)
    server.start()
    at = time.monotonic()
    ground.restored = at, there
    return Ended(at)


def _follow(ground: Ground, *, synchronous: bool) -> Standby:
    primary = server_of(ground)
    if not isinstance(primary, PostgresqlServer):
        raise TypeError(primary)
    standby = Standby(primary)
    ground.stack.callback(standby.close)
    standby.follow()
    if synchronous:
        execute(
            primary.url("faults"),
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
        )
    ground.go_on()
    time.sleep(1.0)
    return standby


def fail_over(*, synchronous: bool) -> Callable[[Ground], Ended]:
    """Kill the primary, promote its standby, and let the address lead there."""

    def act(ground: Ground) -> Ended:
        standby = _follow(ground, synchronous=synchronous)
        time.sleep(ground.luck.uniform(0.0, 0.3))
        server_of(ground).kill()
        execute(standby.url("faults"), "SELECT pg_promote()")
        _lead(ground, standby.url("faults"))
        return Ended(time.monotonic())

    return act


def _lead(ground: Ground, root: str) -> None:
    ground.root = root
    ground.sql = create_engine(root, poolclass=NullPool)
    if ground.proxy is not None:
        ground.proxy.lead_to(root)


class ReplicatedMariadb(MariadbServer):
    """One whose changes another may follow."""

    number = 1

    def command(self) -> list[str]:
        """Return the command, with a log of the changes."""
        return [*super().command(), "--log-bin=bin", f"--server-id={self.number}"]


class ReplicatedMysql(MysqlServer):
    """One whose changes another may follow."""

    number = 1

    def command(self) -> list[str]:
        """Return the command, with global numbers of the changes."""
        gtids = ["--gtid-mode=ON", "--enforce-gtid-consistency=ON"]
        return [*super().command(), f"--server-id={self.number}", *gtids]

    def initialise(self) -> None:
        """Forget the identity of the server whose data were copied."""
        super().initialise()
        (self.data / "auto.cnf").unlink(missing_ok=True)


def switch(ground: Ground) -> Ended:
    """Let the primary only read, promote the replica when it has all, and lead there.

    The old one lives on, and keeps its connections.
    """
    old = server_of(ground)
    new = ReplicatedMysql() if ground.engine == "mysql" else ReplicatedMariadb()
    new.number = 2
    ground.stack.callback(new.close)
    new.start()
    admin = make_url(new.url("mysql")).render_as_string(hide_password=False)
    if ground.engine == "mysql":
        execute(
            admin,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={old.port},"
            " SOURCE_USER='root', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
            "SET GLOBAL read_only = 1",
        )
    else:
        execute(
            admin,
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={old.port},"
            " MASTER_USER='root', MASTER_USE_GTID=slave_pos",
            "START SLAVE",
            "SET GLOBAL read_only = 1",
        )
    ground.go_on()
    time.sleep(0.5)
    execute(ground.root, "SET GLOBAL read_only = 1")
    mysql = ground.engine == "mysql"
    with on(ground.root) as one, on(admin) as other:
        asked = "SELECT @@GLOBAL.gtid_executed" if mysql else "SELECT @@GLOBAL.gtid_binlog_pos"
        wait = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 20)" if mysql else (
            "SELECT MASTER_GTID_WAIT(%s, 20)"
        )  # fmt: skip
        position = one.exec_driver_sql(asked).scalar_one()
        if other.exec_driver_sql(wait, (position,)).scalar_one() != 0:
            raise RuntimeError("the replica did not follow")
        stop = "STOP REPLICA" if mysql else "STOP SLAVE"
        other.exec_driver_sql(stop).close()
        other.exec_driver_sql("SET GLOBAL read_only = 0").close()
    _lead(ground, new.url("faults"))
    return Ended(time.monotonic())


def pooled(ground: Ground, url: str) -> str:
    """Put PgBouncer in front of the database."""
    pooler = PgBouncer(url, "transaction", size=20, follows=100)
    ground.stack.callback(pooler.close)
    pooler.start()
    ground.pooler = pooler
    return pooler.url


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        title: for the page.
        act: does it once.
        engines: which can have it, and why the others cannot.
        ground: options of the ground.
        afresh: whether each round needs a new ground.
        may_lose: what it loses by its nature.
        excused: engines on which the account may have losses.
    """

    title: str
    act: Callable[[Ground], Ended]
    engines: tuple[str, ...] = SERVERS
    without: str = NO_SERVER
    ground: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    afresh: bool = False
    may_lose: str = ""
    excused: tuple[str, ...] = ()


FAULTS = {
    "kill": Fault("worker killed (`kill -9`)", kill, ALL),
    "freeze": Fault(
        "worker stopped (SIGSTOP) beyond its `consumer_timeout`, not between ack and commit", freeze
    ),
    "server": Fault("server killed (`kill -9`) and started", kill_server),
    "sync": Fault(
        "failover to a synchronous standby",
        fail_over(synchronous=True),
        ("postgresql",),
        "not had here",
        afresh=True,
    ),
    "async": Fault(
        "failover to an asynchronous standby",
        fail_over(synchronous=False),
        ("postgresql",),
        "not had here",
        afresh=True,
        may_lose="what was committed last and not yet sent to the standby",
        excused=("postgresql",),
    ),
    "switch": Fault(
        "planned switch to a replica", switch, ("mysql", "mariadb"), "not had here", afresh=True
    ),
    "silent": Fault("half-open network", fall_silent),
    "cut": Fault("answers cut, also of commits", cut_answers),
    "hour_on": Fault("clock an hour ahead", step(HOUR), STEPPED, "", {"stepped": True}),
    "hour_back": Fault("clock an hour back", step(-HOUR), STEPPED, "", {"stepped": True}),
    "disk": Fault("disk full for a second", fill_disk, ALL, ground={"small": 400}, excused=("h2",)),
    "read_only": Fault(
        "server that only reads for a second",
        read_only,
        ("postgresql", "mysql", "mariadb"),
        "it has no such state",
    ),
    "exhausted": Fault(
        "connections exhausted for a second",
        exhaust,
        ("postgresql", "mysql", "mariadb"),
        "it has no limit of connections",
        ground={"options": {"postgresql": ("-c", "max_connections=40")}},
    ),
    "pooler": Fault(
        "PgBouncer killed and started",
        restart_pooler,
        ("postgresql",),
        "PostgreSQL only",
        ground={"through": pooled},
    ),
    "deadlocks": Fault("deadlock storm", storm),
    "restore": Fault(
        "backup restored under running workers",
        restore,
        may_lose="all since the backup",
        afresh=True,
    ),
}


def ground_of(fault: Fault, engine: str, seed: int) -> Ground:
    """A ground for a fault."""
    options = dict(fault.ground)
    of_engine = options.pop("options", {}).get(engine, ())
    server: PrivateServer | None = None
    if fault.act is switch:
        server = ReplicatedMysql() if engine == "mysql" else ReplicatedMariadb()
        server.start()
    ground = Ground(engine, seed, options=of_engine, server=server, **options)
    if server is not None:
        ground.stack.callback(server.close)
    return ground


def can(fault: Fault, engine: str) -> str:
    """Why an engine cannot have a fault here; empty if it can."""
    if engine not in fault.engines:
        return fault.without or "its clock cannot be stepped alone"
    if fault.ground.get("stepped") and FAKETIME is None:
        return "needs libfaketime"
    return ""
