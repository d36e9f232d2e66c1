"""Histories: the checker finds each violation that it should, and nothing in what is right."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine

from queue_over_sql import FixedDelay, QueueService
from queue_over_sql.testing.history import (
    Event,
    History,
    Journal,
    Recorder,
    Rules,
    Verdict,
    check,
    read,
)
from queue_over_sql.testing.history.__main__ import main

if TYPE_CHECKING:
    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = pytest.mark.engines("sqlite")


def event(act: str, at: float, who: str = "", id_: int = 1, **more: Any) -> Event:
    """An event of a consumer, whose name has the number of its claim, such as ``A2``."""
    facts: dict[str, Any] = {"queue": "jobs", "id": id_, "writer": who[:1] or "p", "attempt": 1}
    if who:
        facts |= {"consumer": who[0], "round": int(who[1:] or 1)}
    return Event(act, at, **{**facts, **more})


def published(*ids: int, at: float = 0.0) -> list[Event]:
    """The publishes of these messages."""
    return [event("published", at, id_=id_) for id_ in ids]


def held(who: str, begin: float, end: float, verb: str = "ack", **more: Any) -> list[Event]:
    """A claim that was settled: it surely lasted from begin to end."""
    return [
        event("delivered", begin, who, **more),
        event("settling", end, who, verb=verb, **more),
        event("settled", end + 0.1, who, verb=verb, **more),
    ]


def call(who: str, begin: float, end: float, id_: int, group: str = "a") -> list[Event]:
    """A claim whose handler ran in all that time."""
    facts: dict[str, Any] = {"id_": id_, "group": group}
    return [
        event("delivered", begin - 0.1, who, **facts),
        event("started", begin, who, **facts),
        event("finished", end, who, **facts),
        event("settled", end + 0.1, who, verb="done", **facts),
    ]


def verdict(events: list[Event], rules: Rules | None = None, **state: Any) -> Verdict:
    """What the checker says of the one queue."""
    history = History(sorted(events, key=lambda each: each.at))
    given = {"jobs": rules} if rules else None
    given_state = {name: {"jobs": value} for name, value in state.items() if name != "dead"}
    return check(history, given, **given_state, dead=state.get("dead"))


LEASE = Rules(lease=4.0)
ORDER = Rules(order=0.0)
FIFO = Rules(group_limit=1)
BACK = Rules(restored_within=5.0)
DIED = [*published(1, 2), event("delivered", 1, "A", 1), event("settling", 1.5, "A", 3)]
SIGNS = [event("delivered", 0.5 + n, f"A{n}", 9 + n) for n in range(2, 30)]
AT_RATE = [event("delivered", n / 10, f"A{n}", n) for n in range(1, 5)]

WRONG: dict[str, tuple[str, int | str, Verdict]] = {
    "published and gone": ("lost", 1, verdict(published(1), left=[])),
    "named, published and gone": (
        "lost",
        "x",
        verdict([event("published", 0, id_=0, name="x")], left=["y"]),
    ),
    "named, its holder was killed before it settled": (
        "lost",
        "x",
        verdict(
            [
                event("published", 0, id_=0, name="x", queue=""),
                event("delivered", 1, "A", name="x"),
                *held("A2", 2, 3, id_=2),
            ],
            left=[],
        ),
    ),
    "released and gone, and the other one has its id as a name": (
        "lost",
        1,
        verdict(
            [
                *published(1, 2),
                *held("A", 1, 2, "release", name="0"),
                *held("B", 3, 4, id_=2, name="1"),
            ],
            left=[],
        ),
    ),
    "finished, and not in the archive": (
        "lost",
        1,
        verdict([*published(1), *held("A", 1, 2)], left=[], finished=[]),
    ),
    "acked, and still there": (
        "came back",
        1,
        verdict([*published(1), *held("A", 1, 2)], left=[1]),
    ),
    "given while another one held it": (
        "two holders",
        1,
        verdict([*held("A", 1, 3), *held("B", 2, 2.5, "release")]),
    ),
    "given while one lived that died later": (
        "two holders",
        1,
        verdict(
            [
                event("delivered", 1, "A"),
                event("delivered", 2, "A2", 7),
                event("delivered", 3, "A3", 8),
                event("delivered", 2.5, "B"),
            ],
            LEASE,
        ),
    ),
    "one round for two deliveries": (
        "two holders",
        1,
        verdict([event("delivered", 1, "A"), event("delivered", 2, "A")]),
    ),
    "acked after it had lost the claim": (
        "not the holder",
        1,
        verdict([*held("A", 1, 9), event("delivered", 7, "B")], LEASE),
    ),
    "settled what nobody gave it": (
        "not the holder",
        1,
        verdict([event("delivered", 1, "A"), event("settled", 2, "B", verb="nack")]),
    ),
    "acked twice": (
        "effects twice",
        1,
        verdict([*held("A", 1, 2), event("settled", 3, "A", verb="ack")]),
    ),
    "acked by two": ("effects twice", 1, verdict([*held("A", 1, 2), *held("B", 3, 4)])),
    "given again after its end": (
        "effects twice",
        1,
        verdict([*held("A", 1, 2), event("delivered", 3, "B")]),
    ),
    "twice in the archive": (
        "effects twice",
        1,
        verdict([*published(1), *held("A", 1, 2)], left=[], finished=[1, 1]),
    ),
    "taken by two at once": (
        "effects twice",
        1,
        verdict(
            [
                event(act, at, writer=who, began=0.9, verb=verb)
                for who, at in (("A", 1.0), ("B", 1.05))
                for act, verb in (("delivered", ""), ("settled", "done"))
            ]
        ),
    ),
    "an effect twice": ("effects twice", "x", verdict(published(1), effects=["x", "x"])),
    "the younger one first": (
        "order",
        1,
        verdict([*published(1, 2), *held("A", 1, 2, id_=2), *held("B", 3, 4, id_=1)], ORDER),
    ),
    "the younger one first in one claim": (
        "order",
        1,
        verdict(
            [event("delivered", 1, "A", 2, batch=1), event("delivered", 1.1, "A", 1, batch=1)],
            ORDER,
        ),
    ),
    "behind a younger one after a release": (
        "order",
        1,
        verdict(
            [
                *published(1, 2),
                *held("A", 1, 2, "release"),
                *held("A2", 3, 4, id_=2),
                event("delivered", 5, "A3"),
            ],
            ORDER,
        ),
    ),
    "less urgent first, which was due": (
        "order",
        2,
        verdict(
            [
                *published(1, 2, 3),
                *held("A", 1, 1.5, id_=3, due=7.0),
                *held("A2", 2, 3, id_=1, priority=1, due=5.0),
                *held("A3", 4, 5, id_=2, due=7.0),
            ],
            ORDER,
        ),
    ),
    "less urgent first": (
        "order",
        2,
        verdict(
            [
                *published(1, 2),
                *held("A", 1, 2, id_=1, priority=1),
                *held("A2", 3, 4, id_=2, priority=0),
            ],
            ORDER,
        ),
    ),
    "two of a group at once": (
        "group limit",
        2,
        verdict([*published(1, 2), *call("A", 1, 3, 1), *call("B", 2, 4, 2)], FIFO),
    ),
    "a later one of a group first": (
        "group order",
        2,
        verdict([*published(1, 2), *call("A", 1, 2, 2), *call("B", 3, 4, 1)], FIFO),
    ),
    "the next one of a group after one that failed in the same hand": (
        "group order",
        2,
        verdict(
            [
                *published(1, 2),
                *(
                    event("failed", 2, "A", group="a") if each.act == "finished" else each
                    for each in call("A", 1, 2, 1)[:3]
                ),
                *call("A", 2, 3, 2)[:3],
                *call("B", 9, 10, 1),
                *call("B2", 11, 12, 2),
            ],
            FIFO,
        ),
    ),
    "three of a group, and two are allowed": (
        "group limit",
        3,
        verdict(
            [each for n in (1, 2, 3) for each in held(f"A{n}", n, 9, id_=n, group="a")],
            Rules(group_limit=2, group_order="any"),
        ),
    ),
    "three in hand, and two are allowed": (
        "queue limit",
        3,
        verdict(
            [each for n in (1, 2, 3) for each in held(f"A{n}", n, 9, id_=n)],
            Rules(queue_limit=2),
        ),
    ),
    "faster than the rate": ("rate", 4, verdict(AT_RATE, Rules(queue_rate="1/s burst 3"))),
    "a group faster than its rate": (
        "rate",
        2,
        verdict(
            [event("delivered", n / 10, f"A{n}", n, group="a") for n in (1, 2)],
            Rules(group_rate="1/s"),
        ),
    ),
    "what the dead one held comes late": (
        "restored late",
        1,
        verdict(
            [*DIED, *held("B", 8, 9, id_=2), event("delivered", 10, "C")], BACK, dead={"A": 2.0}
        ),
    ),
    "what the dead one held never comes": (
        "restored late",
        1,
        verdict([*DIED, *held("B", 8, 9, id_=2)], BACK, dead={"A": 2.0}),
    ),
}


def test_each_violation_is_found() -> None:
    """Exactly this one, of this message, with the events that show it."""
    for name, (kind, message, found) in WRONG.items():
        assert [(kind, message)] == [(v.kind, v.message) for v in found.violations], name
        shown = str(found.violations[0])
        assert shown.startswith(f"{kind}: message {message} of queue 'jobs': "), name
        assert shown.count("\n") == len(found.violations[0].events), name
    kinds = {kind for kind, _, _ in WRONG.values()}
    assert 11 == len(kinds)


RIGHT: dict[str, Verdict] = {
    "a delivery that came before the release was noted": verdict(
        [*held("A", 1, 2, "release"), event("delivered", 2.05, "B")]
    ),
    "a refused ack proves no claim": verdict(
        [
            event("delivered", 1, "A"),
            event("delivered", 2, "B"),
            event("settling", 3, "A", verb="ack"),
            event("lost", 4, "A", verb="ack"),
        ],
        LEASE,
    ),
    "one that stood still may have lost its claim": verdict(
        [event("delivered", 1, "A"), event("delivered", 6, "A2", 2), event("delivered", 5, "B")],
        Rules(lease=8.0),
    ),
    "a killed one holds nothing afterwards": verdict(
        [event("delivered", 1, "A"), event("delivered", 3, "B")], LEASE
    ),
    "an ack whose answer was cut may have been done": verdict(
        [*published(1), event("delivered", 1, "A"), event("settling", 2, "A", verb="ack")],
        left=[],
    ),
    "also if it was repeated and refused": verdict(
        [
            *published(1),
            event("delivered", 1, "A"),
            *(event("settling", at, "A", verb="ack") for at in (2, 3)),
            event("lost", 3.1, "A", verb="ack"),
        ],
        left=[],
    ),
    "somebody settled it, and nobody knows by which claim": verdict(
        [
            *SIGNS,
            event("delivered", 1, "A"),
            event("settled", 2, writer="C", verb="released"),
            *held("B", 2.5, 3),
        ],
        LEASE,
    ),
    "a service that stops gives back what it holds": verdict(
        [
            *SIGNS,
            event("delivered", 1, "A"),
            event("closing", 2, writer="A", id_=0, queue=""),
            *held("B", 2.5, 3),
        ],
        LEASE,
    ),
    "another process has its name now": verdict(
        [
            *SIGNS,
            event("delivered", 1, "A"),
            event("opened", 2, writer="A", id_=0, queue=""),
            *held("B", 2.5, 3),
        ],
        LEASE,
    ),
    "its lease began with the call": verdict(
        [*SIGNS, event("delivered", 6, "A", began=1.0), *held("B", 7, 8)], LEASE
    ),
    "urgent, and not due yet": verdict(
        [
            *published(1, 2),
            *held("A", 1, 2, id_=2, priority=1, due=5.0),
            *held("B", 11, 12, due=15.0),
        ],
        ORDER,
    ),
    "or not": verdict(
        [
            *published(1),
            event("delivered", 1, "A"),
            event("settling", 2, "A", verb="ack"),
            *held("B", 5, 6),
        ],
        LEASE,
        left=[],
    ),
    "a publish whose answer was cut may be there": verdict(
        [event("intends", 0, id_=0, name="x"), *held("A", 1, 2, name="x")], left=[]
    ),
    "or not there": verdict([event("intends", 0, id_=0, name="x")], left=[]),
    "a nack at the last attempt is an end": verdict(
        [*published(1), *held("A", 1, 2, "nack")], left=[]
    ),
    "a taken message": verdict(
        [*published(1), event("delivered", 1), event("settled", 1, verb="done")], left=[]
    ),
    "a dead letter of the reaper": verdict(
        [*published(1), event("delivered", 1, "A"), event("dead", 9)], LEASE, left=[]
    ),
    "one that was published later, with a lower id": verdict(
        [*published(2), *held("A", 1, 2, id_=2), *published(1, at=1.5), *held("B", 3, 4)], ORDER
    ),
    "one that was claimed at the same moment": verdict(
        [
            *published(1, 2),
            *held("A", 2, 3, id_=2, began=0.5),
            *held("B", 2.5, 3, id_=1, began=1.5),
        ],
        ORDER,
    ),
    "one of a group may wait": verdict(
        [*published(1, 2), *held("A", 1, 2, id_=2), *held("B", 3, 4, id_=1, group="a")], ORDER
    ),
    "a retried one waits for its delay": verdict(
        [
            *published(1, 2),
            *held("A", 1, 2, "nack"),
            *held("A2", 3, 4, id_=2),
            *held("A3", 5, 6, attempt=2),
        ],
        ORDER,
    ),
    "several of a group in one hand, one after the other": verdict(
        [*published(1, 2), *call("A", 1, 2, 1), *call("A", 2, 3, 2)], FIFO
    ),
    "one that was killed after two calls, before their acks": verdict(
        [
            *published(1, 2),
            *call("A", 1, 2, 1)[:3],
            *call("A", 2, 3, 2)[:3],
            *call("B", 9, 10, 1),
            *call("B2", 11, 12, 2),
        ],
        FIFO,
    ),
    "a handler that runs on after its claim": verdict(
        [
            *published(1, 2),
            event("delivered", 1, "A", group="a"),
            event("started", 1.1, "A", group="a"),
            *call("B", 7, 8, 1),
            *call("B2", 9, 11, 2),
            event("finished", 10, "A", group="a"),
            event("lost", 10.1, "A", group="a"),
        ],
        Rules(group_limit=1, lease=4.0),
    ),
    "as fast as the rate": verdict(AT_RATE, Rules(queue_rate="1/s burst 4")),
    "noted late": verdict(
        [event("delivered", 5 + n / 100, f"A{n}", n, began=float(n)) for n in range(5)],
        Rules(queue_rate="1/s burst 1"),
    ),
    "what the dead one held comes in time": verdict(
        [*DIED, *held("B", 6, 9, id_=1), *held("B2", 10, 11, id_=2)], BACK, dead={"A": 2.0}
    ),
    "one acked has the id of one that is left as a name": verdict(
        [*held("A", 1, 2, "release", name="0"), *held("B", 3, 4, id_=2, name="1")], left=[1]
    ),
    "an observer and the code around it": verdict(
        [*held("A", 1, 2), event("settled", 2.2, "A", verb="done")], left=[], finished=[1]
    ),
}


def test_what_is_right_is_not_reported() -> None:
    """Above all what is unknown: it may have happened, or not."""
    for name, found in RIGHT.items():
        assert [] == found.violations, f"{name}:\n{found}"


def test_losses_need_to_know_what_is_left() -> None:
    """Without it the verdict says that they were not looked for."""
    found = verdict(published(1))
    assert [] == found.violations
    assert "'jobs': losses, " in str(found)
    assert "'jobs': order, " in str(found)
    assert "'jobs': losses of claims that nobody settled" in str(verdict(published(1), left=[1]))
    assert [] == verdict(published(1), Rules(order=0.0), left=[1], finished=[]).unchecked


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    """What was not written whole did not happen; a foreign line is an error with its place."""
    Journal(tmp_path, "a").published(["x"])
    with (tmp_path / "a.jsonl").open("a") as journal:
        journal.write('{"act": "settl')
    assert ["x"] == [each.name for each in read(tmp_path).events]
    again = Journal(tmp_path, "a")
    again.published(["y"])
    assert ["x", None, "y"] == [each.name for each in read(tmp_path).events]
    (tmp_path / "b.jsonl").write_text('{"act": "flew"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl, line 1"):
        read(tmp_path)


def test_no_history_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is found in it, which proves nothing."""
    for folder, said in ((tmp_path / "none", "no journal"), (tmp_path, "no journal")):
        with pytest.raises(FileNotFoundError, match=said):
            check(folder)
        with pytest.raises(SystemExit, match="2"):
            main([str(folder)])
        assert said in capsys.readouterr().err
    Journal(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "no events" in capsys.readouterr().err


def test_machines_are_compared_by_the_time_of_day(tmp_path: Path) -> None:
    """Their monotonic clocks have nothing in common; overlaps within the tolerance are none."""
    for machine, at in (("a", 5.0), ("b", 90_000.0)):
        head = {"act": "opened", "at": at, "writer": machine}
        head |= {"machine": machine, "epoch": 1_000_000 - at}
        events: list[dict[str, Any]] = [
            {"act": "delivered", "at": at + (machine == "b"), "writer": machine, "id": 1,
             "consumer": machine, "round": 1},
        ]  # fmt: skip
        if machine == "a":
            events += [
                {**events[0], "act": act, "at": at + 1.05, "verb": "ack"}
                for act in ("settling", "settled")
            ]
        lines = [json.dumps(each) + "\n" for each in (head, *events)]
        (tmp_path / f"{machine}.jsonl").write_text("".join(lines))
    history = read(tmp_path)
    assert 0.1 == history.tolerance
    assert [0.0, 1.0, 1.05, 1.05] == [round(each.at - 1_000_000, 2) for each in history.events]
    assert [] == check(history).violations
    kinds = [each.kind for each in check(read(tmp_path, tolerance=0.01)).violations]
    assert ["two holders"] == kinds


def work(url: str, folder: str) -> None:
    """Handle what is there in another process: some fail, some are rejected."""
    with QueueService(url, observer=Recorder(folder)) as service:
        worker = service.worker(concurrency=2)

        @worker.handle("jobs", transactional=True)
        def handle(message: Message, connection: Any) -> None:
            connection.exec_driver_sql("SELECT 1").close()
            if message.payload % 5 == 0 and message.attempt == 1:
                raise RuntimeError

        worker.run(until_empty=True)


def test_a_run_is_recorded_and_found_right(
    make_service: MakeService,
    database: TestDatabase,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two processes work beside threads; the command finds it right, until one row is removed."""
    recorder = Recorder(tmp_path, "publisher")
    service = make_service(observer=recorder)
    queue = service.create_queue("jobs", archive="all", retry=FixedDelay(0.01))
    queue.publish_many(list(range(40)))
    engine = create_engine(database.url)
    with recorder.transaction(), engine.begin() as caller:
        queue.publish(101, connection=caller)
    claims: list[Message] = []
    with (
        contextlib.suppress(ZeroDivisionError),
        recorder.transaction(),
        engine.begin() as caller,
    ):
        # It commits by itself.
        claims += queue.consume()
        queue.publish(102, connection=caller)
        queue.ack(claims, connection=caller)
        raise ZeroDivisionError
    threading.Thread(target=claims[0].release).start()
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(database.url, str(tmp_path))) for _ in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(60)
        assert 0 == process.exitcode
    while messages := queue.consume(5):
        queue.ack(messages)
    extra = queue.publish(103)
    history = read(tmp_path)
    assert 3 == len({each.writer for each in history.events})
    assert 42 == sum(each.act == "published" for each in history.events)
    acts = {each.act for each in history.events}
    assert {"published", "delivered", "started", "finished", "failed", "settled", "closing"} == acts
    arguments = [str(tmp_path), "--database", database.url, "--consumer-timeout", "30"]
    assert 0 == main(arguments), capsys.readouterr().out
    assert "42 published" in capsys.readouterr().out

    with engine.begin() as caller:
        caller.exec_driver_sql(f"DELETE FROM queue_jobs WHERE id = {extra.id}")
    assert 1 == main(arguments)
    assert f"lost: message {extra.id} of queue 'jobs'" in capsys.readouterr().out
    engine.dispose()


def test_a_claim_lost_by_its_own_process_is_told_apart(
    make_service: MakeService, tmp_path: Path
) -> None:
    """The same consumer claims the message again, and its earlier handler is refused."""
    service = make_service(observer=Recorder(tmp_path))
    queue = service.create_queue("jobs")
    queue.publish("x", lease=0.05)
    [first] = queue.consume()
    while not (again := queue.consume()):
        time.sleep(0.02)
        service.reap()
    with pytest.raises(Exception, match="lost"):
        first.ack()
    again[0].ack()
    found = check(tmp_path, {"jobs": Rules(lease=0.05)}, left={"jobs": []})
    assert [] == found.violations
    assert {"published": 1, "delivered": 2, "lost": 1, "settled": 1} == found.counts
