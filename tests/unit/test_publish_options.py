"""`Publication` declares the options of a message, and every way to publish offers them likewise.

A new option must be given to each of them, or its place below must say who goes without it.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, Final, get_type_hints

from queue_over_sql import Message, Publication, Queue, QueueService, Schedules, Topic
from queue_over_sql.aio import AsyncQueue, AsyncSchedules, AsyncTopic
from queue_over_sql.cli import options, publish, schedules, topics
from queue_over_sql.cli.lines import READERS
from queue_over_sql.schedules import definition
from queue_over_sql.spark import sink_columns
from queue_over_sql.values.json_lines import CONTENT_FIELDS
from queue_over_sql.values.options import (
    DURATIONS,
    PUBLISH_OPTIONS,
    PublishOptions,
    RequestOptions,
    ScheduleOptions,
    TopicOptions,
    names_of,
)
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.shapes import NewMessage, NewTopicMessage

# Nobody could answer a request before it is due, and topics know no columns. A schedule makes its
# own keys, and says when.
VERBS: Final[tuple[tuple[Any, type, set[str]], ...]] = (
    (Queue.publish, PublishOptions, set()),
    (AsyncQueue.publish, PublishOptions, set()),
    (Topic.publish, TopicOptions, {"columns"}),
    (AsyncTopic.publish, TopicOptions, {"columns"}),
    (Queue.request, RequestOptions, {"delay", "at"}),
    (AsyncQueue.request, RequestOptions, {"delay", "at"}),
    (Schedules.add, ScheduleOptions, {"key", "at"}),
    (AsyncSchedules.add, ScheduleOptions, {"key", "at"}),
)
COMMANDS: Final[tuple[tuple[Any, set[str]], ...]] = (
    (publish.publish, set()),
    (publish.request, {"delay", "at"}),
    (topics.publish, {"columns"}),
    (schedules.add, {"key", "at"}),
)
DEFAULTS: Final = {field.name: field.default for field in dataclasses.fields(Publication)}


def test_verbs_offer_the_options_of_a_publication() -> None:
    """By the same names, with the same defaults and types."""
    declared = {
        field.name: (field.type, field.default) for field in dataclasses.fields(Publication)[1:]
    }
    declared["columns"] = ("Mapping[str, Any] | None", None)
    for verb, typed, without in VERBS:
        offered = {
            name: (parameter.annotation, parameter.default)
            for name, parameter in inspect.signature(verb).parameters.items()
            if name in declared
        }
        wanted = {name: said for name, said in declared.items() if name not in without}
        assert wanted == offered, verb.__qualname__
        assert wanted.keys() == set(names_of(typed)), verb.__qualname__


def test_the_publishing_verbs_agree_on_conflicts() -> None:
    """Which are no option of a single message, since a batch has one rule for all."""
    verbs = Queue.publish, Queue.publish_many, Topic.publish
    assert {("OnConflict", "raise")} == {_said(verb, "on_conflict") for verb in verbs}
    for command in (publish.publish, topics.publish):
        assert options.OnConflictOption == _hint(command, "on_conflict")
        assert "raise" == _said(command, "on_conflict")[1]


def test_commands_offer_the_options_of_a_publication() -> None:
    """Each as it is declared for all commands, with the type and the default of the library."""
    fields = [field.name for field in dataclasses.fields(Publication)]
    assert {"payload", *PUBLISH_OPTIONS} == set(fields)
    assert set(PUBLISH_OPTIONS) == options.MESSAGE_OPTIONS.keys()
    hints = get_type_hints(Publication)
    for command, without in COMMANDS:
        parameters = inspect.signature(command).parameters
        for name, option in options.MESSAGE_OPTIONS.items():
            own = option.called or name
            said = f"{command.__module__}.{command.__name__} {name}"
            assert (name not in without) == (own in parameters), said
            if name in without:
                continue
            assert Annotated[option.type | None, option.declared] == parameters[own].annotation
            if option.called is None:
                assert DEFAULTS[name] == parameters[own].default, said
    # Where the command line has another type, `parse_pairs` or a parser makes it.
    for name in ("key", "kind", "at", "max_attempts"):
        assert hints[name] == options.MESSAGE_OPTIONS[name].type | None, name


def test_lines_and_schedules_take_the_options_of_a_publication() -> None:
    """A line of JSON has all of them, a schedule those that it does not refuse."""
    assert set(PUBLISH_OPTIONS) == READERS.keys()
    kept = definition._OF_PUBLICATION
    assert set(PUBLISH_OPTIONS) - {"key", "at", "columns"} == set(kept)
    assert {n for n in PUBLISH_OPTIONS if "Duration" in str(_types()[n])} == DURATIONS


def test_http_takes_the_options_of_a_publication() -> None:
    """For queues and for topics."""
    for shape, typed in ((NewMessage, PublishOptions), (NewTopicMessage, TopicOptions)):
        assert set() == set(names_of(typed)) - set(shape.__struct_fields__), shape


def test_spark_writes_the_options_of_a_publication(sqlite_url: str) -> None:
    """As columns of a DataFrame; the queue's own columns have their own names there."""
    wanted = {"payload", *PUBLISH_OPTIONS} - {"columns"}
    assert wanted == sink_columns._ACCEPTED.keys()
    with QueueService(sqlite_url) as service:
        encoder = sink_columns.Encoder(service.create_queue("jobs"), [])
    assert wanted == encoder._encoders.keys()


def test_messages_show_what_was_published() -> None:
    """In Python, in lines of JSON and over HTTP; times and the lease have other names."""
    wanted = set(PUBLISH_OPTIONS) - {"delay", "at", "lease", "expires"}
    assert wanted == set(CONTENT_FIELDS)
    for name in wanted:
        assert hasattr(Message, name) or name == "headers", name
        assert name in shapes.Message.__struct_fields__, name


def test_the_options_are_documented() -> None:
    """By ``Publication``, to which all verbs refer."""
    said = str(inspect.getdoc(Publication))
    assert [] == [name for name in PUBLISH_OPTIONS if f"\n    {name}: " not in said]


def _types() -> dict[str, Any]:
    return {name: kind.__forward_arg__ for name, kind in PublishOptions.__annotations__.items()}


def _said(verb: Any, name: str) -> tuple[Any, Any]:
    parameter = inspect.signature(verb).parameters[name]
    return parameter.annotation, parameter.default


def _hint(command: Any, name: str) -> Any:
    return get_type_hints(command, include_extras=True)[name]
