"""Conflicts of keys versus other indexes, and the effect of a replace on the holder."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import JSON, Column, DateTime, Double, Float, Integer, Numeric, String, inspect

from queue_over_sql import ClaimLost, DatabaseUnavailable, DuplicateKey, Publication, QueueError
from tests.contract.caller_transactions import OPENERS, opened
from tests.contract.queue_state import (
    add_effect,
    counts,
    effect_count,
    effects,
    isolates_snapshots,
    live_rows,
    payloads,
)
from tests.contract.queues.edits import LONG_AGO
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase
    from queue_over_sql.values.states import OnConflict

WAYS: tuple[OnConflict, ...] = ("raise", "skip", "replace")


def key_index(engine: Engine) -> str:
    """The name of the index or constraint that keeps keys unique."""
    inspector = inspect(engine)
    found = [
        *inspector.get_unique_constraints("queue_jobs"),
        *(index for index in inspector.get_indexes("queue_jobs") if index["unique"]),
    ]
    names = {one["name"] for one in found if one["column_names"] == ["message_key"]}
    (name,) = names
    assert name is not None
    return name


@pytest.fixture
def jobs(service: QueueService, engine: Engine) -> Queue:
    """A queue with unique indexes of the user's own, named and filled to be mistaken."""
    queue = service.create_queue(
        "jobs", columns=[Column("tenant", Integer), Column("message_key_too", String(100))]
    )
    name = key_index(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX {name}_too ON queue_jobs (tenant)")
        connection.exec_driver_sql(
            "CREATE UNIQUE INDEX message_key_of_ours ON queue_jobs (message_key_too)"
        )
    queue.publish("first", key="first", columns={"tenant": 1, "message_key_too": name})
    return queue


def clashes(engine: Engine) -> list[dict[str, Any]]:
    """Values of the user's own columns that are taken."""
    return [{"tenant": 1}, {"message_key_too": key_index(engine)}]


def refused(operation: Callable[[], object]) -> QueueError:
    """The error of an operation that a unique index of the user's refuses: ours, with its cause."""
    with pytest.raises(QueueError) as caught:
        operation()
    assert not isinstance(caught.value, DuplicateKey)
    assert caught.value.__cause__ is not None
    return caught.value


# ---------------------------------------------------------------- another unique index


def test_another_unique_violation_is_not_the_keys(jobs: Queue, engine: Engine) -> None:
    """Neither raised as DuplicateKey, nor skipped, nor does it replace the other message."""
    before = live_rows(engine, jobs)
    for columns in clashes(engine):
        # Without a key there is nothing to skip or to replace.
        for way, key in (("raise", None), *((way, "fresh") for way in WAYS)):
            refused(partial(jobs.publish, "second", key=key, on_conflict=way, **columns))
            assert before == live_rows(engine, jobs), (columns, way, key)
    assert ["first"] == payloads(jobs.messages().list())
    assert "created" == jobs.publish("second", key="fresh", columns={"tenant": 2}).outcome


def test_a_batch_with_another_violation_publishes_nothing(jobs: Queue, engine: Engine) -> None:
    """All or none, whatever is to be done about keys."""
    batches: list[list[Any]] = [
        ["plain", Publication("second", key="second", columns=columns), "plain"]
        for columns in clashes(engine)
    ]
    batches.append([Publication(n, key=f"k{n}", columns={"tenant": 7}) for n in range(2)])
    for way, items in ((way, items) for way in WAYS for items in batches):
        refused(partial(jobs.publish_many, items, on_conflict=way))
        assert ["first"] == payloads(jobs.messages().list()), (way, items)


def test_a_load_with_another_violation_publishes_nothing_of_the_batch(
    jobs: Queue, engine: Engine
) -> None:
    """The bulk path tells them apart too."""
    for columns, key in ((columns, key) for columns in clashes(engine) for key in ("fresh", None)):
        items = [*range(50), Publication("second", key=key, columns=columns), *range(50)]
        refused(partial(jobs.load, items))
        assert ["first"] == payloads(jobs.messages().list()), (columns, key)


def test_a_replace_that_another_index_refuses_changes_nothing(jobs: Queue, engine: Engine) -> None:
    """The key is found, the new content does not fit: the old one stays, and so does its holder."""
    jobs.publish("second", key="second", columns={"tenant": 2})
    first, second = jobs.consume(2)
    before = live_rows(engine, jobs)
    refused(lambda: jobs.publish("new", key="second", columns={"tenant": 1}, on_conflict="replace"))
    assert before == live_rows(engine, jobs)
    jobs.ack([first, second])


def test_another_violation_in_the_callers_transaction(
    jobs: Queue, effects_engine: Engine, database: TestDatabase
) -> None:
    """The caller goes on, where the engine lets a transaction go on after an error."""
    openers = (OPENERS["connection"], OPENERS["session"], OPENERS["connection"])
    for number, (way, opener) in enumerate(zip(WAYS, openers, strict=True)):
        publish = partial(jobs.publish, "x", key=way, on_conflict=way)
        with opened(opener, effects_engine) as caller:
            add_effect(caller, 2 * number)
            refused(partial(publish, tenant=1, connection=caller))
            if database.engine == "postgresql":
                caller.rollback()
                add_effect(caller, 2 * number)
            add_effect(caller, 2 * number + 1)
            publish(columns={"tenant": 2 + number}, connection=caller)
            caller.commit()
    assert effect_count(effects_engine) == 2 * len(WAYS)
    assert ["first", "x", "x", "x"] == payloads(consume_exactly(jobs, 4))


def test_a_key_taken_after_the_callers_transaction_began(
    queue: Queue, effects_engine: Engine
) -> None:
    """A snapshot that is older than the other message does not hide it.

    Where the server refuses to read past a snapshot, the caller is told to repeat the transaction.
    """
    outcomes: dict[OnConflict, str | None] = {
        "raise": None,
        "skip": "skipped",
        "replace": "replaced",
    }
    for number, (way, outcome) in enumerate(outcomes.items()):
        with effects_engine.connect() as caller:
            assert number == len(caller.execute(effects.select()).all())
            first = queue.publish("first", key="k")
            publish = partial(queue.publish, "second", key="k", on_conflict=way, connection=caller)
            if isolates_snapshots(caller):
                with pytest.raises(DatabaseUnavailable):
                    publish()
                caller.rollback()
            if outcome is None:
                with pytest.raises(DuplicateKey) as caught:
                    publish()
                assert first.id == caught.value.id
            else:
                answer = publish()
                assert first.id == answer.id
                assert outcome == answer.outcome
            add_effect(caller, number)
            caller.commit()
        (message,) = consume_exactly(queue, 1)
        assert ("second" if way == "replace" else "first") == message.payload
        message.ack()
    assert effect_count(effects_engine) == len(outcomes)


# ---------------------------------------------------------------- replacing what is claimed

VERBS: dict[str, Callable[[Queue, Message], object]] = {
    "ack": lambda _, message: message.ack(),
    "nack": lambda _, message: message.nack("bad", delay=0),
    "release": lambda _, message: message.release(),
    "reject": lambda _, message: message.reject("bad"),
    "extend": lambda _, message: message.extend(),
    "batch ack": lambda queue, message: queue.ack([message]),
    "exchange": lambda queue, message: queue.exchange(message),
}
REPLACES: dict[str, Callable[[Queue], object]] = {
    "publish": lambda queue: queue.publish("new", key="k", on_conflict="replace"),
    "publish_many": lambda queue: queue.publish_many(
        ["plain", Publication("new", key="k")], on_conflict="replace"
    ),
}


def test_a_replaced_message_is_lost_to_its_holder(queue: Queue, make_service: MakeService) -> None:
    """The old holder can change nothing, before and after another one has the new content."""
    other = make_service().queue("jobs")
    for replace in REPLACES.values():
        queue.publish("old", key="k")
        (old,) = queue.consume()
        replace(other)
        assert_lost(queue, old)
        (new,) = other.consume(where=other.table.c.message_key == "k")
        assert old.id == new.id
        assert "new" == new.payload
        assert 1 == new.attempt
        assert_lost(queue, old)
        new.extend()
        new.ack()
        assert 0 == queue.messages(key="k").count()
        assert (0, 0) == counts(queue)[1:]
        queue.purge()


def assert_lost(queue: Queue, message: Message) -> None:
    """No verb changes a message that its holder lost."""
    for name, verb in VERBS.items():
        with pytest.raises(ClaimLost) as caught:
            verb(queue, message)
        assert [message] == caught.value.messages, name


def test_a_replacement_of_a_transaction_fences_when_it_commits(
    queue: Queue, engine: Engine
) -> None:
    """A rolled back replace leaves the holder its claim; a committed one takes it."""
    queue.publish("old", key="k")
    (old,) = queue.consume()
    with engine.connect() as caller:
        queue.publish("new", key="k", on_conflict="replace", connection=caller)
        caller.rollback()
        old.extend()
        queue.publish("new", key="k", on_conflict="replace", connection=caller)
        caller.commit()
    with pytest.raises(ClaimLost):
        old.ack()
    assert ["new"] == payloads(consume_exactly(queue, 1))


# ---------------------------------------------------------------- what counts as a change

CONTENT: dict[str, Any] = {
    "kind": "a",
    "headers": {"h": 1},
    "priority": 1,
    "max_attempts": 7,
    "lease": 70,
    "tenant": 1,
}
CHANGES: dict[str, dict[str, Any]] = {
    "payload": {"payload": {"v": 2}},
    "true is not one": {"payload": {"v": True}},
    "text is no number": {"payload": {"v": "1"}},
    "no field": {"payload": {}},
    "kind": {"kind": "b"},
    "no kind": {"kind": None},
    "headers": {"headers": {"h": 2}},
    "no headers": {"headers": None},
    "priority": {"priority": 0},
    "attempts": {"max_attempts": 8},
    "no attempts": {"max_attempts": None},
    "lease": {"lease": 71},
    "column": {"tenant": 2},
    "no column": {"tenant": None},
    "time": {"at": LONG_AGO},
}


@pytest.fixture
def levels(service: QueueService) -> Queue:
    """A queue with two levels and a column of its own."""
    return service.create_queue("jobs", priorities=2, columns=[Column("tenant", Integer)])


def test_any_difference_replaces(levels: Queue) -> None:
    """Each part of a message counts, type by type, and the holder of the old one loses it."""
    for name, change in CHANGES.items():
        first = levels.publish({"v": 1}, key="k", **CONTENT)
        (old,) = levels.consume()
        changed = {"payload": {"v": 1}, **CONTENT, **change}
        second = levels.publish(changed.pop("payload"), key="k", on_conflict="replace", **changed)
        assert first.id == second.id, name
        assert "replaced" == second.outcome, name
        with pytest.raises(ClaimLost):
            old.ack()
        (new,) = consume_exactly(levels, 1)
        expected = {"payload": {"v": 1}, **CONTENT, **change}
        assert repr(expected["payload"]) == repr(new.payload)
        assert expected["kind"] == new.kind
        assert (expected["headers"] or {}) == (new.headers or {})
        assert expected["priority"] == new.priority
        assert {"tenant": expected["tenant"]} == dict(new.columns)
        new.ack()


def test_the_same_again_leaves_the_holder_alone(levels: Queue, engine: Engine) -> None:
    """Identical content: unchanged, nothing is written, and the claim may be settled."""
    levels.publish({"v": 1}, key="k", **CONTENT)
    (message,) = levels.consume()
    before = live_rows(engine, levels)
    again = levels.publish({"v": 1}, key="k", on_conflict="replace", **CONTENT)
    assert message.id == again.id
    assert "unchanged" == again.outcome
    assert before == live_rows(engine, levels)
    message.ack()
    assert (0, 0, 0) == counts(levels)


def test_the_same_content_at_the_same_time_is_unchanged(levels: Queue) -> None:
    """An instant that is given counts, and only when it differs."""
    instant = LONG_AGO.replace(year=2099)
    first = levels.publish("x", key="k", at=instant)
    for _ in range(2):
        same = levels.publish("x", key="k", at=instant, on_conflict="replace")
        assert first.id == same.id
        assert "unchanged" == same.outcome
    moved = levels.publish("x", key="k", at=instant.replace(day=3), on_conflict="replace")
    assert first.id == moved.id
    assert "replaced" == moved.outcome
    (message,) = levels.messages().list()
    assert instant.replace(day=3) == message.available_at == message.scheduled_at


ROUNDED: dict[str, tuple[Any, Any, Any]] = {
    "single": (Float(24), 1 / 3, 0.25),
    "price": (Numeric(10, 2), Decimal("1.005"), Decimal("1.1")),
    "ratio": (Numeric(10, 2, asdecimal=False), 1.1, 2.2),
    "exact": (Double(), Decimal("0.1"), 0.2),
    "moment": (
        DateTime(),
        datetime(2026, 1, 2, 3, 4, 5, 123456),  # noqa: DTZ001 - the column has no zone
        datetime(2027, 1, 2, 3, 4, 5),  # noqa: DTZ001
    ),
    "whole": (JSON(), {"a": 1}, {"a": True}),
}
"""Types, values that some engine rounds or brings into another form, and others."""


def test_a_value_that_the_engine_rounds_is_not_changed_by_itself_again(
    service: QueueService,
) -> None:
    """A replace with the same values leaves the message to its holder, one with others does not."""
    queue = service.create_queue(
        "odd", columns=[Column(name, kind) for name, (kind, *_) in ROUNDED.items()]
    )
    values = {name: value for name, (_, value, _) in ROUNDED.items()}
    replace = partial(queue.publish, 1, key="a", on_conflict="replace")
    replace(**values)
    (message,) = queue.consume()
    assert "unchanged" == replace(**values).outcome
    assert (
        "unchanged"
        == queue.publish_many([Publication(1, key="a", columns=values)], on_conflict="replace")[
            0
        ].outcome
    )
    message.ack()
    for name, (_, _, other) in ROUNDED.items():
        replace(**values)
        (message,) = queue.consume()
        assert "replaced" == replace(**(values | {name: other})).outcome, name
        with pytest.raises(ClaimLost):
            message.ack()
        (message,) = queue.consume()
        if name != "whole":
            assert other == message.columns[name], name
        message.ack()


@pytest.mark.engines("postgresql", "h2")
def test_a_nan_is_not_changed_by_itself(service: QueueService) -> None:
    """Although it is not equal to itself."""
    queue = service.create_queue("odd", columns=[Column("f", Double())])
    for outcome in ("created", "unchanged"):
        again = queue.publish(1, key="a", on_conflict="replace", columns={"f": math.nan})
        assert outcome == again.outcome
