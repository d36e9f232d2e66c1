"""Fair shares: groups take turns by their weights, and by what they have in hand."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from queue_over_sql import FixedDelay, Publication, Reason
from queue_over_sql.queue import core_of
from tests.refusals import refused
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with fair groups."""
    return service.create_queue("jobs", group_fair=True, retry=FixedDelay(0))


def publish(queue: Queue, groups: Iterable[str | None]) -> list[int]:
    """Publish a message for each name; returns their ids."""
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    return [each.id for each in made]


def groups_of(messages: Sequence[Message]) -> list[str | None]:
    """The groups, in this order."""
    return [message.group for message in messages]


def parked(engine: Engine, queue: Queue) -> int:
    """How many messages are out of the claim index."""
    live = core_of(queue).context.tables.live
    waits = (live.c.consumer_id.is_(None), live.c.available_at.is_(None))
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(live).where(*waits)).scalar_one()


@pytest.mark.parametrize(
    ("at_once", "in_hand"),
    [
        pytest.param(1, 1, marks=pytest.mark.full),
        (1, 2),
        pytest.param(1, 8, marks=pytest.mark.full),
        (10, 10),
    ],
)
def test_groups_share_by_their_weights(jobs: Queue, at_once: int, in_hand: int) -> None:
    """Of any 200 messages one group gets 150 and the other 50, a tenth more or less.

    By one consumer, by several, and by batches; and the larger group was published first.
    """
    jobs.groups["a"].configure(weight=3)
    publish(jobs, ["a"] * 300 + ["b"] * 120)
    came: list[str | None] = []
    held: list[Message] = []
    while len(came) < 300:
        held += jobs.consume(at_once)
        came += groups_of(held[-at_once:])
        if len(held) >= in_hand:
            jobs.ack(held[:at_once])
            del held[:at_once]
    shares = [came[start : start + 200].count("b") for start in range(100)]
    assert (45 <= min(shares), max(shares) <= 55) == (True, True), (min(shares), max(shares))


def test_a_lone_group_gets_all(jobs: Queue) -> None:
    """One consumer gets as many as it wants, another one the rest, and nothing is left."""
    publish(jobs, ["a"] * 300)
    assert 120 == len(jobs.consume(120))
    assert [1] * 5 == [len(jobs.consume(1)) for _ in range(5)]
    assert 175 == len(jobs.consume(200))


def test_a_group_with_slow_handlers_takes_no_more_than_its_share(service: QueueService) -> None:
    """The other one waits at most twice as long as alone, with eight consumers.

    Time is counted in steps: a message of the slow group takes 100 of them, else one.
    """

    def waits(name: str, *, with_slow: bool) -> list[int]:
        queue = service.create_queue(name, group_fair=True)
        publish(queue, (["slow"] * 60 if with_slow else []) + ["b"] * 100)
        busy: list[tuple[int, Message]] = []
        found: list[int] = []
        now = 0
        while len(found) < 100:
            now += 1
            queue.ack([message for end, message in busy if end <= now])
            busy = [each for each in busy if each[0] > now]
            while len(busy) < 8 and (messages := queue.consume(1)):
                takes = 100 if messages[0].group == "slow" else 1
                busy.append((now + takes, messages[0]))
                found += [now] if messages[0].group == "b" else []
        return sorted(found)

    alone = waits("alone", with_slow=False)
    beside = waits("beside", with_slow=True)
    assert beside[98] <= 2 * alone[98]


def test_small_groups_are_found_behind_the_backlog_of_another(jobs: Queue) -> None:
    """They get their turns after few messages of the large one, which then goes on alone."""
    publish(jobs, ["large"] * 2000 + [f"small {n}" for n in range(20)])
    came: list[str | None] = []
    for _ in range(45):
        messages = jobs.consume(1)
        came += groups_of(messages)
        jobs.ack(messages)
    assert 20 == len({*came[:25]} - {"large"})
    assert ["large"] * 20 == came[25:]


def test_nothing_is_lost_whichever_way_messages_end(jobs: Queue, engine: Engine) -> None:
    """Each message is done once; what fails, or is given back, comes again."""
    names = [f"g{n}" for n in range(7)]
    chance = random.Random(7)  # noqa: S311 - not for secrets
    ids = publish(jobs, chance.choices([*names, None], [40, 9, 5, 3, 2, 1, 1, 5], k=400))
    done = Counter[int]()
    fates = Counter[int]()
    while len(done) < len(ids):
        messages = jobs.consume(chance.choice([1, 3, 30]))
        assert messages
        for message in messages:
            fates[message.id] += 1
            fate = chance.random() if fates[message.id] < 3 else 1
            if fate < 0.1:
                message.nack("again")
            elif fate < 0.2:
                message.release()
            else:
                message.ack()
                done[message.id] += 1
    assert dict.fromkeys(ids, 1) == done
    assert (0, []) == (parked(engine, jobs), jobs.consume(10))


@pytest.mark.threads("eight of them claim")
@pytest.mark.parametrize("limit", [pytest.param(2**31 - 1, marks=pytest.mark.full), 3])
def test_consumers_beside_each_other_do_each_message_once(
    service: QueueService, make_service: MakeService, engine: Engine, limit: int
) -> None:
    """Eight of them claim one by one and by several, while others publish and some give back."""
    queue = service.create_queue(
        "jobs", group_fair=True, group_limit=limit, max_attempts=100, retry=FixedDelay(0)
    )
    names = [*["a"] * 100, *["b", "c", None] * 10]
    publish(queue, names)
    done: list[int] = []

    def work(number: int) -> None:
        mine = make_service().queue("jobs")
        if number < 2:
            publish(mine, names)
        chance = random.Random(number)  # noqa: S311 - not for secrets
        while len(done) < 3 * len(names):
            for message in mine.consume(chance.choice([1, 1, 4, 20]), wait=0.05):
                if chance.random() < 0.1:
                    message.release()
                else:
                    message.ack()
                    done.append(message.id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert 3 * len(names) == len({*done}) == len(done)
    assert (0, []) == (parked(engine, queue), queue.consume(10))


def test_limits_hold_in_fair_shares(service: QueueService, engine: Engine) -> None:
    """A group has no more in hand than its limit, and each that ends lets out the next."""
    queue = service.create_queue("jobs", group_fair=True, group_limit=2)
    queue.groups["b"].configure(limit=5)
    publish(queue, ["a"] * 60 + ["b"] * 60)
    held: list[Message] = []
    done = 0
    while done < 120:
        held += queue.consume(4)
        counts = Counter(groups_of(held))
        assert (counts["a"] <= 2, counts["b"] <= 5) == (True, True)
        queue.ack([held.pop(0)])
        done += 1
    assert (0, []) == (parked(engine, queue), queue.consume(10))


def test_a_paused_group_leaves_the_others_all(jobs: Queue) -> None:
    """Nothing of it comes until it is resumed."""
    publish(jobs, ["a"] * 30 + ["b"] * 30)
    jobs.groups["a"].pause()
    assert {"b"} == {*groups_of(jobs.consume(20))}
    jobs.groups["a"].resume()
    # Of the other one are as many in hand.
    assert {"a"} == {*groups_of(consume_exactly(jobs, 20))}


def test_messages_without_a_group_are_groups_of_their_own(jobs: Queue) -> None:
    """They come beside a group that has messages in hand."""
    publish(jobs, ["a"] * 10 + [None] * 4)
    assert ["a", None, None, None, None, "a"] == groups_of(
        [message for _ in range(6) for message in jobs.consume(1)]
    )


def test_a_condition_finds_what_its_group_has_parked(jobs: Queue) -> None:
    """It need not match the messages of the group whose turn it is."""
    ids = publish(jobs, ["a"] * 200 + ["b"] * 200)
    jobs.ack(jobs.consume(2))
    wanted = jobs.table.c.id >= ids[-3]
    assert ids[-3:] == [message.id for message in jobs.consume(5, where=wanted)]


def test_no_group_starves_whose_turn_a_condition_leaves_out(jobs: Queue) -> None:
    """Other groups always have enough that matches it. Claims look for the oldest now and then."""
    ids = publish(jobs, ["a"] * 60 + ["b"] * 200)
    jobs.ack(jobs.consume(2))
    wanted = jobs.table.c.id >= ids[30]
    came = []
    for _ in range(10):
        [message] = jobs.consume(1, where=wanted)
        came.append(message.group)
        message.ack()
    assert {"a", "b"} == {*came}


def test_levels_stay_apart(service: QueueService) -> None:
    """A group takes turns on each level, and the more urgent one comes first."""
    queue = service.create_queue("jobs", group_fair=True, priorities=2)
    for level in (1, 0):
        queue.publish_many(
            [Publication(n, group=group, priority=level) for group in "ab" for n in range(60)]
        )
    came = []
    for _ in range(240):
        messages = queue.consume(1)
        came += [(message.priority, message.group) for message in messages]
        queue.ack(messages)
    assert [0] * 120 + [1] * 120 == [level for level, _ in came]
    for level in (0, 1):
        assert 10 <= Counter(came[120 * level : 120 * level + 40])[level, "a"] <= 30


def test_take_shares_by_what_is_in_hand(jobs: Queue, engine: Engine) -> None:
    """It takes of the group with the fewest in hand, and what it took lets out the next one."""
    publish(jobs, ["a"] * 80 + ["b"] * 80)
    jobs.consume(6)
    publish(jobs, ["c"] * 3)
    taken: list[str | None] = []
    with engine.begin() as connection:
        taken += groups_of(jobs.take(30, connection=connection))
    counts = Counter(taken)
    assert (3, 1) == (counts["c"], max(1, abs(counts["a"] - counts["b"])))
    rest: list[str | None] = []
    while messages := jobs.consume(20):
        rest += groups_of(messages)
        jobs.ack(messages)
    assert 127 == len(rest)


def test_shares_can_be_turned_on_and_off(service: QueueService, engine: Engine) -> None:
    """While messages wait, and some are in hand."""
    queue = service.create_queue("jobs", group_limit=3, group_order="any")
    publish(queue, ["a"] * 100 + ["b"] * 100)
    held = queue.consume(2)
    service.create_queue("jobs", group_fair=True, group_limit=50)
    held += queue.consume(20)
    assert 11 == groups_of(held).count("b")
    service.create_queue("jobs", group_fair=False)
    queue.ack(held)
    done = len(held)
    while messages := queue.consume(20):
        queue.ack(messages)
        done += len(messages)
    assert (200, 0) == (done, parked(engine, queue))


def test_fair_shares_bring_groups_without_order(service: QueueService) -> None:
    """They need no other setting; order and shares exclude each other, and that is said."""
    fair = service.create_queue("fair", group_fair=True).settings
    assert (True, "any", 2**31 - 1) == (fair.group_fair, fair.group_order, fair.group_limit)
    with pytest.raises(ValueError, match="group_fair needs groups: give group_fair=False"):
        service.create_queue("fair", group_limit=None)
    service.create_queue("fair", group_limit=None, group_fair=False)
    assert not service.queue("fair").settings.grouped
    service.create_queue("fifo", group_limit=1)
    with pytest.raises(ValueError, match="group_fair=True needs group_order='any'"):
        service.create_queue("fifo", group_fair=True)
    service.create_queue("fifo", group_fair=True, group_order="any")
    assert 1 == service.queue("fifo").settings.group_limit


def test_the_reason_is_the_place_in_the_group(jobs: Queue) -> None:
    """Why a message waits: how many of its group come before it, and what its group has in hand."""
    ids = publish(jobs, ["a"] * 90 + ["b"])
    jobs.groups["a"].configure(weight=2)
    jobs.consume(3)
    why = jobs.why(ids[-2])
    assert (Reason.IN_LINE, 88) == (why.reason, why.position)
    assert "weight 2" in why.text
    info = jobs.groups["a"].info()
    assert (2, 2) == (info.weight, info.own_weight)


@pytest.mark.threads
def test_the_reaper_lets_out_one_of_a_group_that_nobody_would_wake(
    jobs: Queue, service: QueueService, engine: Engine
) -> None:
    """Its turns let out the others. In what claims left behind it finds no fault."""
    publish(jobs, ["a"] * 150 + ["b"] * 150)
    held = jobs.consume(1) + jobs.consume(4)
    waiting = parked(engine, jobs)
    assert (True, 0) == (waiting > 200, service.reap().repaired)
    # As if somebody had removed what the others wait behind.
    live = core_of(jobs).context.tables.live
    with engine.begin() as connection:
        free = live.c.consumer_id.is_(None) & live.c.available_at.is_not(None)
        connection.execute(live.delete().where(free))
        connection.execute(live.update().values(blocks=None))
    jobs.ack(held)
    assert [] == jobs.consume(10)
    assert 2 == service.reap().repaired
    assert waiting - 2 == parked(engine, jobs)
    assert waiting == len([each for _ in range(6) for each in jobs.consume(100)])


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_weight_is_a_whole_number_above_zero(jobs: Queue) -> None:
    """Anything else is refused, and nothing is changed."""
    for weight in (0, -1, 1001, 1.5, "3"):
        with refused(weight, TypeError, ValueError, match="weight"):
            jobs.groups["a"].configure(weight=weight)  # type: ignore[arg-type]
        assert 1 == jobs.groups["a"].info().weight
