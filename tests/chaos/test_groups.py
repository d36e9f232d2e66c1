"""`kill -9` of consumers and publishers of groups: the order and the limits of each group hold."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import Literal, NamedTuple

import pytest
from sqlalchemy import Engine

from queue_over_sql import FixedDelay, Publication
from queue_over_sql.settings import GroupOrder
from queue_over_sql.testing.history import Rules
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import archived_count, archived_tokens, live_tokens
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import ordered, publisher, puppet, worker
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

CONSUMERS, PUBLISHERS = 3, 2


class Load:
    """Consumers and publishers, of whom some are killed and others take their place."""

    def __init__(self, crew: Crew, url: str) -> None:
        self.crew, self._url = crew, url
        self._case = Case(1, "fifo", 0)
        self._count = 0
        self.readers: list[Process] = []
        self.writers: list[Process] = []
        self.stopped: list[Process] = []

    def start(self, case: Case, consumers: int = CONSUMERS) -> None:
        """All are ready before the first message."""
        self._case = case
        self.readers = [self._reader() for _ in range(consumers)]
        self.writers = [self._writer() for _ in range(PUBLISHERS)]
        for process in [*self.readers, *self.writers]:
            process.expect("ready")
        for process in [*self.readers, *self.writers]:
            process.tell("go")

    def replace(self, members: list[Process], luck: random.Random) -> None:
        """End one of them, somewhere within whatever it does; another takes its place."""
        heir = self._reader() if members is self.readers else self._writer()
        heir.expect("ready")
        time.sleep(luck.uniform(0.0, 0.2))
        victim = members.pop(luck.randrange(len(members)))
        if self._case.how == "stopped" and members is self.readers:
            victim.freeze()
            self.stopped.append(victim)
        else:
            victim.kill()
        heir.tell("go")
        members.append(heir)

    def go_on(self) -> None:
        """Wait until some more messages were finished, by whomever."""
        before = len(self._finished())
        eventually(lambda: len(self._finished()) > before + 10, "work goes on")

    def _finished(self) -> list[str]:
        return self.crew.account().tokens("finished")

    def end(self) -> None:
        """Let the consumers end by themselves."""
        for process in self.readers:
            if self._case.how == "worker":
                process.send(signal.SIGTERM)
            else:
                process.tell("stop")
        for process in self.readers:
            process.expect("drained" if self._case.how == "worker" else "done")

    def _reader(self) -> Process:
        self._count += 1
        if self._case.how == "worker":
            return self.crew.spawn(
                worker.Arguments(
                    self._url,
                    str(self.crew.journals),
                    concurrency=3,
                    prefetch=6,
                    seconds=0.002,
                    consumer_timeout=4.0,
                )
            )
        return self.crew.spawn(
            ordered.Arguments(
                self._url,
                str(self.crew.journals),
                batch=(1, 5, 20)[self._count % 3],
                ordered=self._case.order == "fifo",
                seed=self._count,
            )
        )

    def _writer(self) -> Process:
        self._count += 1
        name = f"writer{self._count}"
        return self.crew.spawn(
            publisher.Arguments(self._url, str(self.crew.journals), "groups", name, pause=0.2)
        )


class Case(NamedTuple):
    """The rules of the groups, and how many consumers and publishers end, and how.

    Attributes:
        fair: whether the groups share.
        how: consumers are ``killed``, or stopped by SIGSTOP for longer than their time limit and
            let go again, or each is a ``worker``, which is killed.
    """

    limit: int
    order: GroupOrder
    kills: int
    how: Literal["killed", "stopped", "worker"] = "killed"
    fair: bool = False


@pytest.fixture
def load(crew: Crew, database: TestDatabase) -> Load:
    """Nothing runs yet."""
    return Load(crew, database.url)


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    "case",
    [
        Case(1, "fifo", 1),
        Case(1, "fifo", 1, "worker"),
        pytest.param(Case(1, "fifo", 2, "stopped"), marks=pytest.mark.full),
        pytest.param(Case(1, "fifo", 5, "worker"), marks=pytest.mark.full),
        pytest.param(Case(1, "fifo", 5), marks=pytest.mark.full),
        pytest.param(Case(2, "any", 3), marks=pytest.mark.full),
        pytest.param(Case(2, "any", 3, fair=True), marks=pytest.mark.full),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_groups_keep_their_order_and_limit_through_kills(
    case: Case, make_service: MakeService, load: Load, sql: Engine
) -> None:
    """Each message ends once; no group has more in hand than its limit, nor runs out of order.

    Judged by the times that the handlers noted themselves. Some calls fail, and what they had comes
    back at once or later. Messages of which the publisher was killed are there whole or not at all.
    """
    make_service().create_queue(
        "jobs",
        archive="all",
        group_limit=case.limit,
        group_order=case.order,
        group_fair=case.fair,
        max_attempts=10_000,
        retry=FixedDelay(0.05),
        lease=120.0,
    )
    luck = random.Random(11)  # noqa: S311 - chance, not a secret
    load.start(case)
    for _ in range(case.kills):
        for members in (load.readers, load.writers):
            load.go_on()
            load.replace(members, luck)
    load.go_on()
    for process in load.stopped:
        process.thaw()
    load.go_on()
    for process in load.writers:
        process.tell("stop")
    for process in load.writers:
        process.expect("done")
    for process in load.readers:
        process.check_alive()
    published = set(load.crew.account().tokens("published"))
    eventually(
        lambda: not live_tokens(sql) and archived_count(sql) >= len(published),
        "all messages finished",
        every=0.2,
        progress=lambda: archived_count(sql),
    )
    load.end()

    account = load.crew.account()
    done = set(archived_tokens(sql, "done"))
    assert set() == published - done
    assert set() == done - set(account.tokens("intends"))
    rules = Rules(lease=2.5, group_limit=case.limit, group_order=case.order)
    assert [] == account.check(sql, rules)


RAISING = """
import os, signal, sys
from queue_over_sql import QueueService
from queue_over_sql.catalog import catalog

class Dying:
    @staticmethod
    def of(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

catalog.wake_all = Dying
QueueService(sys.argv[1]).create_queue("jobs", group_limit=4)
"""


@pytest.mark.engines("sqlite", "postgresql")
@pytest.mark.parametrize("order", ["fifo", "any"])
def test_a_raised_limit_counts_though_its_operator_was_killed(
    make_service: MakeService, database: TestDatabase, order: GroupOrder
) -> None:
    """Between the new limit and the wake-up of what is parked: a reaper does that."""
    jobs = make_service().create_queue("jobs", group_limit=1, group_order=order)
    for n in range(20):
        jobs.publish(n, group="a")
    held = jobs.consume()
    # So often that what is blocked is parked.
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]
    died = subprocess.run([sys.executable, "-c", RAISING, database.url], check=False)
    assert -signal.SIGKILL == died.returncode
    reaper = make_service()
    assert 4 == reaper.queue("jobs").settings.group_limit
    assert 1 == reaper.reap().repaired
    for _ in range(4):
        held += jobs.consume(10)
    assert [0, 1, 2, 3] == [message.payload for message in held]
    assert 0 == reaper.reap().repaired


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("together", [False, True])
def test_a_tenant_whose_handlers_hang_leaves_another_one_its_share(
    make_service: MakeService, crew: Crew, database: TestDatabase, *, together: bool
) -> None:
    """Of eight processes that claim one after the other it gets no more than four.

    So the other one, with a message in each step for each process that is free, waits at most twice
    as long as alone; and nobody who is free gets nothing. Those that claim at the same moment do
    not see each other, so it may get some more: the other one waits at most four times as long.
    """
    jobs = make_service().create_queue("jobs", group_fair=True)
    groups = ["slow"] * 60 + ["quick"] * 80
    made = jobs.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    quick = {each.id for each in made[60:]}
    free = [crew.spawn(puppet.Arguments(database.url)) for _ in range(8)]
    for process in free:
        process.expect("ready")
    alone = len(quick) / len(free)
    begun = steps = 0
    while begun < len(quick):
        steps += 1
        if together:
            for process in free:
                process.tell("consume", count=1)
            replies = [process.expect("reply") for process in free]
        else:
            replies = [process.ask("consume", count=1) for process in free]
        got = [(process, reply["messages"]) for process, reply in zip(free, replies, strict=True)]
        assert {1} == {len(messages) for _, messages in got}
        busy = [(process, each["id"]) for process, [each] in got if each["id"] in quick]
        begun += len(busy)
        for process, number in busy:
            process.ask("ack", id=number)
        free = [process for process, _ in busy]
    assert steps <= (4 if together else 2) * alone
    for process in free:
        assert 1 == len(process.ask("consume", count=1)["messages"])
