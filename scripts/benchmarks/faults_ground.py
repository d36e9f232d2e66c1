"""What faults are done to: a database, workers and publishers on it, and the account at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from queue_over_sql import FixedDelay, QueueService
from queue_over_sql.testing.history import Rules, check, read
from queue_over_sql.testing.servers import H2Server, MariadbServer, MysqlServer, PostgresqlServer
from tests.chaos.account import archived, create_effects, effects, live_tokens, repeated
from tests.chaos.processes import Crew, Process
from tests.chaos.proxy import Proxy
from tests.chaos.roles import steady
from tests.chaos.standby import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queue_over_sql.testing.history import History
    from queue_over_sql.testing.servers import PrivateServer

CONSUMER_TIMEOUT = 4.0
LEASE = 8.0
LONGEST = 100.0
"""Seconds until a recovery counts as none."""
SERVERS: dict[str, type[PrivateServer]] = {
    "postgresql": PostgresqlServer,
    "mariadb": MariadbServer,
    "mysql": MysqlServer,
    "h2": H2Server,
}
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class NotRecovered(RuntimeError):
    """Nothing was handled any more."""


class Watch:
    """Reads the journals as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self.settled: list[tuple[float, int]] = []
        self.open: dict[tuple[str, int], float] = {}

    def look(self) -> None:
        """Read what is new."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as journal:
                journal.seek(self._read[path])
                for line in journal:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] += len(line)
                    # Who opens a file again begins with an empty line.
                    if line.strip():
                        self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        claim = event["writer"], event.get("id", 0)
        if event["act"] == "delivered":
            self.open[claim] = event["at"]
        elif event["act"] in {"settled", "lost"}:
            self.open.pop(claim, None)
            if event.get("verb") == "done":
                self.settled.append((event["at"], claim[1]))

    def held_by(self, writer: str) -> set[int]:
        """The messages that a writer has claimed and not settled."""
        self.look()
        return {id_ for by, id_ in self.open if by == writer}

    def until(self, said: Callable[[], bool], what: str, within: float = LONGEST) -> None:
        """Look until it is so.

        Raises:
            NotRecovered: it was not so in time.
        """
        end = time.monotonic() + within
        while True:
            self.look()
            if said():
                return
            if time.monotonic() > end:
                raise NotRecovered(f"{what}: not within {within:.0f} s")
            time.sleep(0.01)

    def recovery(self, since: float, ids: set[int]) -> float:
        """Seconds until the next settled message, or until all of these were settled."""
        if not ids:
            self.until(lambda: self.settled[-1][0] > since, "the next message is handled")
            return min(at for at, _ in self.settled if at > since) - since

        def times() -> dict[int, float]:
            return {id_: at for at, id_ in self.settled if at > since and id_ in ids}

        self.until(lambda: times().keys() >= ids, "what the dead one held is handled")
        return max(times().values()) - since


class Ground:
    """A database of an engine, two workers and a publisher that ride out what happens to it.

    Args:
        engine: its name.
        seed: for all that happens by chance.
        stepped: whether its clock can be stepped by ``step``.
        small: mebibytes that its data may have; 0: no limit. This needs the right to mount.
        options: further options of the server's command line.
        through: makes what the processes connect to instead of the database.
    """

    def __init__(
        self,
        engine: str,
        seed: int,
        *,
        stepped: bool = False,
        small: int = 0,
        options: tuple[str, ...] = (),
        through: Callable[[Ground, str], str] | None = None,
        server: PrivateServer | None = None,
    ) -> None:
        self.engine, self.luck = engine, random.Random(seed)  # noqa: S311 - guards nothing
        self.folder = Path(tempfile.mkdtemp(prefix="queue-over-sql-faults-"))
        self.folder.chmod(0o755)
        self.stack = contextlib.ExitStack()
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._clock = self.folder / "clock" if stepped else None
        self._small, self._options, self._through = small, options, through
        self.server = server
        self.proxy: Proxy | None = None
        self.workers: list[Process] = []
        self.publishers: list[Process] = []
        self.leased = not stepped
        self.pooler: Any = None
        self.restored: tuple[float, set[str]] | None = None

    def __enter__(self) -> Self:
        """Start everything, and wait until messages are handled."""
        try:
            self._start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End everything; if the work did not go on, show what the processes wrote last."""
        if kind is NotRecovered:
            for process in [*self.workers, *self.publishers]:
                print(process.complaint("did not go on"), file=sys.stderr)
        self.stack.close()

    def _start(self) -> None:
        self.place = self.folder / "data"
        self.place.mkdir(mode=0o777)
        self.place.chmod(0o777)
        if self._small:
            size = f"size={self._small}m,mode=0777"
            command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.place)]
            subprocess.run(command, check=True)
            self.stack.callback(subprocess.run, ["umount", "-l", str(self.place)], check=False)
        if self._clock is not None:
            self._clock.write_text("+0\n")
            self._clock.chmod(0o644)
        self.root = self._database()
        self.url = self.root
        if self.engine in {"mysql", "mariadb"}:
            # One that may not write to a server that only reads.
            self.url = make_url(self.root).set(username="app").render_as_string(hide_password=False)
            grant = "GRANT ALL ON faults.* TO app@'127.0.0.1'"
            execute(self.root, "CREATE USER app@'127.0.0.1'", grant)
        self.sql = create_engine(self.root, poolclass=NullPool)
        create_effects(self.sql)
        service = QueueService(self.url)
        service.create_queue(
            "jobs", archive="all", max_attempts=1_000_000, retry=FixedDelay(0.05), lease=LEASE
        )
        service.stop()
        self.reached = self.url
        if self._through is not None:
            self.reached = self._through(self, self.url)
        elif self.engine != "sqlite":
            self.proxy = self.stack.enter_context(contextlib.closing(Proxy(self.url)))
            self.reached = self.proxy.url
        self.crew = Crew(self.folder)
        self.stack.callback(self.crew.close)
        self.watch = Watch(self.crew.journals)
        for _ in range(2):
            self.add_worker()
        self.publishers.append(self._spawn(publishes=True, seconds=0.02))
        self.go_on()

    def _database(self) -> str:
        if self.engine == "sqlite":
            return f"sqlite:///{self.place}/faults.db"
        if self.server is None:
            parent = SERVERS[self.engine]
            options, place, small = self._options, self.place, bool(self._small)

            class Server(parent):  # type: ignore[valid-type,misc]
                data = place / "data" if small else parent.data

                def command(self) -> list[str]:
                    return [*super().command(), *options]

            self.server = Server()
            self.stack.callback(self.server.close)
            self.server.start()
            if self._clock is not None:
                # Not before, because making the data hangs with such a clock.
                self.server.stop()
                with self.clocked():
                    self.server.start()
        return self.server.create_database("faults")

    @contextlib.contextmanager
    def clocked(self) -> Iterator[None]:
        """Let processes that start meanwhile have the clock that can be stepped."""
        if self._clock is None:
            yield
            return
        clock = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        before = {name: os.environ.get(name) for name in clock}
        os.environ.update(clock)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def step(self, seconds: int) -> None:
        """Set the database's clock so far from the machine's."""
        if self._clock is None:
            raise RuntimeError("this ground has no clock to step")
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+}\n")
        new.chmod(0o644)
        new.replace(self._clock)

    def add_worker(self) -> Process:
        """One more worker."""
        self.workers.append(self._spawn())
        return self.workers[-1]

    def _spawn(self, *, publishes: bool = False, seconds: float = 0.02) -> Process:
        arguments = steady.Arguments(
            self.reached,
            str(self.crew.journals),
            publishes=publishes,
            seconds=seconds,
            consumer_timeout=CONSUMER_TIMEOUT,
        )
        # SQLite's clock is that of its processes.
        with self.clocked() if self.engine == "sqlite" else contextlib.nullcontext():
            process = self.crew.spawn(arguments)
        process.expect("ready")
        process.tell("go")
        return process

    def go_on(self) -> None:
        """Wait until some more messages are handled."""
        self.watch.look()
        count = len(self.watch.settled)
        self.watch.until(lambda: len(self.watch.settled) > count + 5, "work goes on")

    def account(self) -> dict[str, Any]:
        """Let the work end, and say what became of all messages."""
        for process in self.publishers:
            process.tell("stop")
            process.expect("done", LONGEST)

        def all_done() -> bool:
            with contextlib.suppress(SQLAlchemyError):
                return not live_tokens(self.sql)
            return False

        self.watch.until(all_done, "all messages are handled")
        for process in self.workers:
            process.tell("stop")
        for process in self.workers:
            process.expect("done", LONGEST)
        return self._verdict()

    def _verdict(self) -> dict[str, Any]:
        history, done = read(self.crew.journals), archived(self.sql)
        names = [token for token, _ in done]
        made = [token for token, _ in effects(self.sql)]
        if set(made) != set(names):
            raise RuntimeError(f"effects without their acks: {set(made) ^ set(names)}")
        if self.restored is not None:
            return self._after_a_backup(history, names, made)
        # The last heartbeat before a claim may be a third of it old.
        rules = Rules(lease=CONSUMER_TIMEOUT * 2 / 3 if self.leased else None)
        verdict = check(
            history,
            {"jobs": rules},
            left={"jobs": live_tokens(self.sql)},
            finished={"jobs": names},
            effects={"jobs": made},
        )
        published = sum(event.act == "published" for event in history.events)
        wrong = list(verdict.violations)
        return {"published": published, "handled": len(names), "violations": wrong}

    def _after_a_backup(
        self, history: History, names: list[str], made: list[str]
    ) -> dict[str, Any]:
        """By name only, because a database that was put back gives the same ids again."""
        at, there = self.restored or (0.0, set[str]())
        later = {e.name for e in history.events if e.act == "published" and e.at > at and e.name}
        wrong = [f"lost: {name}" for name in sorted((there | later) - set(names))]
        wrong += [f"effects twice: {name}" for name in repeated(made)]
        return {"published": len(there | later), "handled": len(names), "violations": wrong}


@dataclasses.dataclass
class Ended:
    """The end of a fault: when, and which messages must be handled then; none: any."""

    at: float
    ids: set[int] = dataclasses.field(default_factory=set)
