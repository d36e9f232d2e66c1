"""The course of the demo: publish, watch, kill servers, wait for the end, make the account."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from queue_over_sql import Queue
from queue_over_sql.cli.signals import Stop
from queue_over_sql_demo.account import Account, Ledger, Rescue, settle
from queue_over_sql_demo.files import InputFile, digest
from queue_over_sql_demo.fleet import Server
from queue_over_sql_demo.observer import Observer, Snapshot
from queue_over_sql_demo.plan import Plan

TICK_SECONDS = 0.05
START_SECONDS = 60.0
PUBLISH_BATCH = 500
# The share of files after which a server is killed, and after which the next one is; the remaining
# files are published after the last kill.
KILL_AFTER = 0.2
KEPT_BACK = 0.3
SETTLE_LOOKS = 20


class DemoError(Exception):
    """The demo could not finish, so there is no account."""


@dataclass
class Progress:
    """The progress of the demo, for the view."""

    total: int
    started: float = field(default_factory=time.monotonic)
    published: int = 0
    publish_seconds: float = 0.0
    first_publish: float | None = None
    last_done: float | None = None
    snapshot: Snapshot = field(default_factory=Snapshot)
    rescues: list[Rescue] = field(default_factory=list)

    @property
    def work_seconds(self) -> float:
        """Seconds from the first publish to the last result so far."""
        if self.first_publish is None:
            return 0.0
        return (self.last_done or time.monotonic()) - self.first_publish


class Course:
    """Runs the demo on servers that are already started.

    Args:
        plan: the options.
        queue: the demo's own queue.
        observer: reads the queue and the results.
        servers: the server processes.
        files: the files to publish.
        stop: whether the user has interrupted the demo.
        show: called repeatedly with the progress.
        tell: called with a sentence for each event.
    """

    def __init__(
        self,
        plan: Plan,
        queue: Queue,
        observer: Observer,
        servers: list[Server],
        files: tuple[InputFile, ...],
        *,
        stop: Stop,
        show: Callable[[Progress], None],
        tell: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._queue = queue
        self._observer = observer
        self.servers = servers
        self._files = files
        self._stop = stop
        self._show = show
        self._tell = tell
        self.progress = Progress(len(files))
        self.consumer_ids: dict[int, str] = {}
        self._killed_at = 0.0

    def wait_for_servers(self) -> None:
        """Return when every server has registered; `DemoError` if one does not start."""
        deadline = time.monotonic() + START_SECONDS
        while not {server.pid for server in self.servers} <= self.consumer_ids.keys():
            self._check_servers()
            if time.monotonic() > deadline:
                raise DemoError(f"not all processes registered within {START_SECONDS:.0f} s")
            self._pause()
            self.consumer_ids = self._observer.consumer_ids()
        self._tell(f"{len(self.servers)} processes are ready")

    def run(self) -> None:
        """Publish, watch and kill until everything is done or the deadline is over."""
        deadline = time.monotonic() + self._plan.deadline
        while not self._finished():
            self._check_servers()
            if time.monotonic() > deadline:
                self._tell(f"gave up after {self._plan.deadline:.0f} s")
                return
            if not self._published_enough():
                self._publish_some()
            elif not self._kill_due():
                self._pause()
            if self._stop.requested.is_set():
                raise KeyboardInterrupt
            self._look()

    def _finished(self) -> bool:
        everything = self.progress.published == len(self._files)
        return everything and self.progress.snapshot.live == 0

    def _check_servers(self) -> None:
        for server in self.servers:
            if server.failed:
                raise DemoError(f"{server.name} ended unexpectedly:\n{server.log_tail()}")

    def _pause(self) -> None:
        if self._stop.requested.wait(TICK_SECONDS):
            raise KeyboardInterrupt

    def _kill_due(self) -> bool:
        return len(self.progress.rescues) < self._plan.kills

    def _published_enough(self) -> bool:
        published = self.progress.published
        if not self._kill_due():
            return published == len(self._files)
        # Before the kill the servers must not run out of work, or none would hold messages.
        return published >= self._before_kill() and self.progress.snapshot.live > 0

    def _publish_some(self) -> None:
        done = self.progress.published
        files = self._files[done : done + self._next_batch()]
        batch = [self._plan.publication(file) for file in files]
        begin = time.monotonic()
        if self.progress.first_publish is None:
            self.progress.first_publish = begin
        self._queue.publish_many(batch)
        self.progress.publish_seconds += time.monotonic() - begin
        self.progress.published += len(batch)
        if self.progress.published == len(self._files):
            self._tell(f"all {len(self._files):,} files are published")

    def _next_batch(self) -> int:
        left = len(self._files) - self.progress.published
        if self._kill_due():
            before_kill = self._before_kill() - self.progress.published
            # After that, publish the remaining files in small parts.
            left = before_kill if before_kill > 0 else len(self._files) // 10
        return min(PUBLISH_BATCH, max(1, left))

    def _before_kill(self) -> int:
        return math.ceil(len(self._files) * (1 - KEPT_BACK))

    def _look(self) -> None:
        before = self.progress.snapshot.results
        self.progress.snapshot = snapshot = self._observer.snapshot()
        if snapshot.results != before:
            self.progress.last_done = time.monotonic()
        rescues = self.progress.rescues
        if rescues and rescues[-1].seconds is None:
            self._watch_rescue(rescues[-1])
        elif self._kill_due():
            share = KILL_AFTER * (1 + len(rescues))
            if snapshot.results >= share * len(self._files):
                self._try_kill()
        self._show(self.progress)

    def _try_kill(self) -> None:
        """Freeze the server that holds most; kill it if it surely holds claims, else thaw it.

        A frozen server cannot finish anything between the look and the kill. At most one
        acknowledgement per thread may still be on its way to the database, so it must hold more
        than these.
        """
        claimed = self.progress.snapshot.claimed
        alive = [server for server in self.servers if not server.killed]
        victim = max(alive, key=lambda server: claimed.get(self.consumer_of(server), 0))
        if claimed.get(self.consumer_of(victim), 0) <= self._plan.threads:
            return
        victim.freeze()
        if len(self._observer.held_by(self.consumer_of(victim))) <= self._plan.threads:
            victim.thaw()
            return
        self._killed_at = time.monotonic()
        victim.kill()
        held = self._settled_claims(self.consumer_of(victim))
        self.progress.rescues.append(Rescue(victim.name, victim.pid, held))
        self._tell(
            f"{victim.name} (pid {victim.pid}) killed with kill -9; it held {len(held)} messages"
        )

    def consumer_of(self, server: Server) -> str:
        """The consumer id of `server`; empty before it has registered."""
        return self.consumer_ids.get(server.pid, "")

    def _settled_claims(self, consumer_id: str) -> frozenset[int]:
        """The messages that the dead consumer holds after its last statements have ended."""
        held = self._observer.held_by(consumer_id)
        for _ in range(SETTLE_LOOKS):
            time.sleep(TICK_SECONDS)
            again = self._observer.held_by(consumer_id)
            if again == held:
                break
            held = again
        return held

    def _watch_rescue(self, rescue: Rescue) -> None:
        if self._observer.any_live(rescue.held):
            return
        seconds = time.monotonic() - self._killed_at
        self.progress.rescues[-1] = Rescue(rescue.server, rescue.pid, rescue.held, seconds)
        self._tell(
            f"other processes had finished its {len(rescue.held)} messages {seconds:.1f} s later"
        )

    def account(self) -> Account:
        """Read everything again and compare; call it when the servers have stopped."""
        paths = {file.number: file.path for file in self._files}
        size = min(self._plan.sample, len(paths))
        folder = Path(self._plan.folder)
        return settle(
            Ledger(
                files=paths,
                published=self.progress.published,
                results=self._observer.results(),
                live=self._observer.snapshot().live,
                archived=self._queue.archive.messages().count(),
                rescues=self.progress.rescues,
                kills_wanted=self._plan.kills,
                sample=random.sample(sorted(paths), size),
                check=lambda path: digest(folder / path),
                customers=self._plan.customers,
            )
        )
