"""Errors and messages leave their process, as in process pools."""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import multiprocessing
import pickle
import pkgutil
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table

import queue_over_sql
from queue_over_sql import errors
from queue_over_sql.errors import QueueError
from queue_over_sql.migrations.upgrade import _InUse
from queue_over_sql.schedules.operations import Conflict
from queue_over_sql.web.changes import TooManyFound
from tests.contrib.django import site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql import Message, QueueService

# Of each class that takes more than a text.
EXAMPLES: Final[list[QueueError]] = [
    errors.QueueNotFound("jobs", ["job"]),
    errors.SchemaTooNew("jobs", 9, 3, "0.1.0", "0.9.0"),
    errors.SchemaOutdated("Tables are old.", ["a column"], ["ALTER TABLE t"]),
    errors.DuplicateKey("jobs", "k", 7),
    errors.DuplicateKey("jobs", "k", None),
    errors.DuplicateKey("jobs", "k", 7, finished=True),
    errors.DuplicateKey("jobs", "k", 7, requeued=True),
    errors.GroupFull("jobs", "a", 7),
    errors.GroupFull("jobs", None, 7, 3),
    errors.PayloadTooLarge("payload", 2000, 1000),
    errors.TopicNotFound("news"),
    errors.StageLost("jobs", "stage", 1, 2),
    errors.ScheduleNotFound("daily"),
    errors.RequestTimeout("jobs", "c", 7, "1 s", withdrawn=True),
    errors.RequestTimeout("jobs", "c", 7, "1 s", withdrawn=False, gone=True),
    errors.NoResult("It failed.", "jobs", 7, "failed", "why"),
    errors.ResultTimeout("It waits.", "jobs", 7),
    errors.ReplyQueueGone("jobs", "It is gone."),
    errors.ConsumerNotFound("me"),
    errors.ConsumerFenced("me", 1, 2, "host"),
    errors.CheckpointBehind("me", 1, 2),
    errors.RoundsGone("me", "They are gone."),
    errors.NotPermitted("No right.", "queue_jobs", ["INSERT"], ["publisher"]),
    errors.NotFinished("Refused.", [], {7: "a constraint"}),
    errors.ClaimLost("It is lost.", []),
    errors.ConsumerExpired("It is late.", []),
    errors.ServiceClosed(),
    Conflict("daily"),
    TooManyFound(3, 2),
    _InUse("why", "advice"),
]


def classes_of_errors(root: type[QueueError] = QueueError) -> Iterator[type[QueueError]]:
    """A class of errors and all below it."""
    yield root
    for each in root.__subclasses__():
        yield from classes_of_errors(each)


def _copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def test_every_error_can_be_pickled() -> None:
    """A copy has the class, the text, the attributes and the notes, whatever the class takes."""
    site.set_up()
    # Airflow has an environment of its own.
    elsewhere = tuple(f"queue_over_sql.{each}" for each in ("spark", "testing", "contrib.airflow"))
    for module in pkgutil.walk_packages(queue_over_sql.__path__, "queue_over_sql."):
        if not module.name.startswith(elsewhere):
            importlib.import_module(module.name)
    ours = {each for each in classes_of_errors() if each.__module__.startswith("queue_over_sql")}
    shown = {type(error) for error in EXAMPLES}
    with_own_arguments = {each for each in ours if "__init__" in vars(each)}
    assert with_own_arguments <= shown
    examples = [
        *EXAMPLES,
        *(each("A text.") for each in ours - shown if each.__init__ is Exception.__init__),
    ]
    for error in examples:
        error.add_note("a note")
        for again in (_copied(error), copy.copy(error)):
            assert type(again) is type(error)
            assert str(error) == str(again)
            assert error.args == again.args
            assert vars(error) == vars(again)


def _raise_duplicate(number: int) -> None:
    raise errors.DuplicateKey("jobs", "k", number)


def test_a_process_pool_goes_on_after_an_error() -> None:
    """The pool raises the error of its task in the parent, and takes further tasks."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        for number in range(2):
            with pytest.raises(errors.DuplicateKey, match="id") as raised:
                pool.submit(_raise_duplicate, number).result(60)
            assert "jobs" == raised.value.queue
            assert number == raised.value.id


@pytest.mark.engines("sqlite")
def test_a_message_is_read_in_another_process(service: QueueService) -> None:
    """A copy has all facts and settles nothing; the original does. An error takes it along."""
    queue = service.create_queue("jobs", columns=[Column("price", Integer)])
    queue.publish({"a": 1}, key="k", kind="b", headers={"c": 1}, columns={"price": 3})
    message = queue.consume(1)[0]
    error = errors.ClaimLost("It is lost.", [message])
    again: Message[Any] = _copied(error).messages[0]
    facts = [
        name
        for name in dir(message)
        if not name.startswith("_") and not callable(getattr(message, name))
    ]
    assert {name: getattr(again, name) for name in facts} == {
        name: getattr(message, name) for name in facts
    }
    for settle in (again.ack, again.nack, again.release, again.extend):
        with pytest.raises(QueueError, match="settle the message there"):
            settle()
    queue.ack(again)
    assert 0 == queue.stats().claimed
    queue.publish({"a": 1}, columns={"price": 3})
    copy.copy(queue.consume(1)[0]).ack()
    assert 0 == queue.stats().claimed


@pytest.mark.engines("sqlite")
def test_a_row_of_an_adopted_table_is_read_in_another_process(service: QueueService) -> None:
    """Its mapping stays read-only."""
    table = Table(
        "orders", MetaData(), Column("id", Integer, primary_key=True), Column("x", String(9))
    )
    with service._parts.connections.engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert().values(x="y"))
    queue = service.adopt_queue("orders", table)
    queue.enqueue(table.c.id == 1)
    message = queue.consume(1)[0]
    again = _copied(message)
    assert again.payload is again.row
    assert {"id": 1, "x": "y"} == dict(again.row)
    assert type(again.row) is type(message.row)
