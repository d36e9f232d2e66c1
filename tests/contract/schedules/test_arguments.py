"""Schedules: refused arguments, exact storage, and schedules that cannot be published."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    create_engine,
    text,
)

from queue_over_sql import (
    PayloadInvalid,
    PayloadTooLarge,
    QueueError,
    QueueNotFound,
    ScheduleNotFound,
    ServiceClosed,
)
from tests.contract.queue_state import ARGUMENT_ERRORS, payloads
from tests.contract.schedules.schedule_times import everything, hourly, next_of, silence
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no time": ({}, "cron"),
    "two times": ({"cron": "* * * * *", "every": 1}, "cron"),
    "too often": ({"every": 0.09}, "every"),
    "never": ({"every": 0}, "every"),
    "no duration": ({"every": "soon"}, "every"),
    "no crontab": ({"cron": "nonsense"}, "cron"),
    "no text": ({"cron": 5}, "cron"),
    "a long step": ({"cron": "*/90 * * * *"}, "every="),
    "unknown zone": ({"every": 1, "timezone": "Europe/Atlantis"}, "timezone"),
    "no zone": ({"every": 1, "timezone": 1}, "timezone"),
    "a folder of zones": ({"every": 1, "timezone": "Europe"}, "timezone"),
    "a path": ({"every": 1, "timezone": "../../etc/passwd"}, "timezone"),
    "unknown policy": ({"every": 1, "missed": "none"}, "missed"),
    "a key": ({"every": 1, "key": "k"}, "key"),
    "a conflict": ({"every": 1, "on_conflict": "skip"}, "on_conflict"),
    "an instant": ({"every": 1, "at": datetime.now(UTC)}, "at"),
    "a connection": ({"every": 1, "connection": None}, "connection"),
    "an unknown column": ({"every": 1, "tenant": 7}, "tenant"),
    "a wrong priority": ({"every": 1, "priority": 9}, "priority"),
    "a wrong delay": ({"every": 1, "delay": -1}, "delay"),
    "headers that are none": ({"every": 1, "headers": 5}, "headers"),
    "an empty name": ({"every": 1, "name": ""}, "name"),
    "a long name": ({"every": 1, "name": "n" * 151}, "name"),
    "a name with NUL": ({"every": 1, "name": "a\0"}, "name"),
    "a name that is none": ({"every": 1, "name": 7}, "name"),
}


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
@pytest.mark.usefixtures("queue")
def test_arguments_that_make_no_sense(service: QueueService) -> None:
    """Each is refused with an error that names it, and nothing is there afterwards."""
    for case, (given, named) in REFUSED.items():
        arguments = {"name": "s", "queue": "jobs", "payload": 1, **given}
        with refused(case, *ARGUMENT_ERRORS, match=named):
            service.schedules.add(**arguments)
    # It is no argument of add.
    with pytest.raises(TypeError, match="on_conflict"):
        service.schedules.add("s", "jobs", 1, every=1, on_conflict="skip")  # type: ignore[call-arg]
    assert [] == service.schedules.list()


@pytest.mark.engines("sqlite")
def test_what_the_queue_would_refuse(service: QueueService) -> None:
    """Found out when the schedule is added, not when it fires; and so is a missing queue."""
    service.create_queue("small", max_payload_bytes=20)
    with pytest.raises(QueueNotFound):
        service.schedules.add("s", "nowhere", 1, every=1)
    with pytest.raises(PayloadInvalid):
        service.schedules.add("s", "small", {1: 2}, every=1)
    with pytest.raises(PayloadTooLarge):
        service.schedules.add("s", "small", "x" * 30, every=1)
    with pytest.raises(PayloadTooLarge):
        service.schedules.add("s", "small", 1, every=1, headers={"h": "x" * 70_000})
    assert [] == service.schedules.list()


@pytest.mark.engines("sqlite")
def test_an_existing_table_is_refused(service: QueueService, engine: Engine) -> None:
    """Its messages are rows of the user's, so a schedule cannot make them; the error says so."""
    table = Table("orders", MetaData(), Column("number", Integer, primary_key=True))
    table.create(engine)
    service.adopt_queue("orders", table)
    with pytest.raises(ValueError, match="an adopted table"):
        service.schedules.add("s", "orders", {}, every=1)


@pytest.mark.engines("sqlite")
def test_a_stopped_service_schedules_nothing(make_service: MakeService) -> None:
    """Every verb says that it was stopped."""
    service = make_service()
    service.create_queue("jobs")
    service.stop()
    for verb in (
        lambda: service.schedules.add("s", "jobs", 1, every=1),
        service.schedules.list,
        lambda: service.schedules.get("s"),
        lambda: service.schedules.remove("s"),
    ):
        with pytest.raises(ServiceClosed):
            verb()


# ---------------------------------------------------------------- what is kept


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("queue")
def test_time_zones_may_be_given_as_names_and_objects(service: QueueService) -> None:
    """Both are the same zone, and so the same schedule."""
    zone = ZoneInfo("Australia/Lord_Howe")
    first = service.schedules.add("s", "jobs", 1, cron="0 9 * * *", timezone="Australia/Lord_Howe")
    assert first == service.schedules.add("s", "jobs", 1, cron="0 9 * * *", timezone=zone)
    assert 9 == next_of(first).astimezone(zone).hour
    assert 0 == next_of(first).minute % 30
    assert "UTC" == service.schedules.add("s", "jobs", 1, every=9, timezone=UTC).timezone


PAYLOADS: list[tuple[Any, object]] = [
    ("json", {"z": 1, "a": [None, True, 1.5, {"bytes": "x"}], "ž": "€\n"}),
    ("json", None),
    ("json", "ž€" * 200_000),
    ("text", "zwölf €"),
    ("bytes", b"\x00\xff"),
]


def test_payloads_come_as_they_were_given(service: QueueService, engine: Engine) -> None:
    """Of each type and size, through the schedule's record and back, key order included."""
    for payload_type, payload in PAYLOADS:
        queue = service.create_queue(f"of_{payload_type}", payload=payload_type)
        added = service.schedules.add("s", queue, payload, cron=hourly())
        assert payload == added.payload
        silence(engine, queue, "s", next_of(added))
        assert 1 == service.reap().scheduled
        (message,) = everything(queue)
        assert payload == message.payload
        assert str(payload) == str(message.payload)
        service.schedules.remove("s")
        assert [] == everything(queue)


def test_own_columns_are_kept_by_type(service: QueueService, engine: Engine) -> None:
    """Values that JSON does not have arrive as they were given."""
    columns: list[Column[Any]] = [
        Column("tenant", String(40), nullable=False),
        Column("price", Numeric(10, 2)),
        Column("raw", LargeBinary(20)),
        Column("seen", DateTime),
    ]
    values: dict[str, Any] = {
        "tenant": "acme",
        "price": Decimal("12.50"),
        "raw": b"\x00\x01",
        "seen": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - the column has no time zone
    }
    queue = service.create_queue("jobs", columns=columns)
    added = service.schedules.add("s", queue, 1, cron=hourly(), **values)
    assert values == dict(added.options)
    silence(engine, queue, "s", next_of(added))
    service.reap()
    (message,) = everything(queue)
    assert values == dict(message.columns)
    with pytest.raises(ARGUMENT_ERRORS, match="tenant"):
        service.schedules.add("other", queue, 1, cron=hourly())
    wrong = {"tenant": "x", "price": complex(1, 2)}
    with pytest.raises(ARGUMENT_ERRORS, match="price"):
        service.schedules.add("other", queue, 1, every=1, columns=wrong)
    given = service.schedules.add("s", queue, 1, cron=hourly(), columns=values)
    assert added.options == given.options


@dataclasses.dataclass
class Report:
    """A payload with a type."""

    id: uuid.UUID
    since: timedelta


@pytest.mark.engines("sqlite")
def test_typed_payloads_are_written_when_the_schedule_is_added(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """A reaper that knows nothing of the type fires it, and a consumer that does gets it back."""
    queue = service.create_queue("jobs", kinds=[Report])
    report = Report(uuid.UUID(int=7), timedelta(days=1))
    added = service.schedules.add("s", queue, report, cron=hourly())
    assert {"id": str(report.id), "since": "P1D"} == added.payload
    silence(engine, queue, "s", next_of(added))
    assert 1 == make_service().reap().scheduled
    (message,) = everything(queue)
    assert report == message.payload
    assert "Report" == message.kind
    with pytest.raises(PayloadInvalid):
        service.schedules.add("s", queue, {"id": 5}, every=1, kind="Report")


# ---------------------------------------------------------------- what cannot be fired


@pytest.mark.engines("sqlite")
def test_one_that_cannot_be_fired_does_not_keep_the_others(
    service: QueueService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and fires again as soon as its queue takes its messages."""
    queue = service.create_queue("small")
    other = service.create_queue("other")
    first = service.schedules.add("a", queue, "x" * 100, cron=hourly())
    service.schedules.add("b", other, "y", cron=hourly())
    service.create_queue("small", max_payload_bytes=50)
    silence(engine, queue, "a", next_of(first))
    silence(engine, other, "b", next_of(first))
    with caplog.at_level(logging.WARNING):
        assert 1 == service.reap().scheduled
        assert 0 == service.reap().scheduled
    assert [] == everything(queue)
    assert ["y"] == payloads(everything(other))
    assert 1 == sum(
        "'a' cannot publish its messages" in line.getMessage() for line in caplog.records
    )
    service.create_queue("small", max_payload_bytes=500)
    assert 1 == service.reap().scheduled


@pytest.mark.engines("sqlite")
def test_one_that_cannot_be_fired_can_be_paused_and_removed(service: QueueService) -> None:
    """Its messages need not be made for that; to resume it says why it cannot."""
    queue = service.create_queue("small")
    service.schedules.add("s", queue, "x" * 100, cron=hourly())
    service.create_queue("small", max_payload_bytes=50)
    service.schedules.pause("s")
    with pytest.raises(PayloadTooLarge):
        service.schedules.resume("s")
    assert service.schedules.remove("s")
    with pytest.raises(ScheduleNotFound):
        service.schedules.get("s")


@pytest.mark.engines("sqlite")
def test_a_definition_that_nobody_can_read(
    service: QueueService, queue: Queue, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A time zone that this server lacks, or a record of a newer version, harms no other."""
    broken = service.schedules.add("a", queue, 1, cron=hourly(), timezone="Europe/Zagreb")
    service.schedules.add("b", queue, 2, cron=hourly())
    replaced = "UPDATE queue_over_sql_schedules SET definition = REPLACE(definition, :a, :b)"
    with engine.begin() as connection:
        connection.execute(text(replaced), {"a": "Europe/Zagreb", "b": "Europe/Atlantis"})
    silence(engine, queue, "b", next_of(service.schedules.get("b")))
    with caplog.at_level(logging.WARNING):
        assert 1 == service.reap().scheduled
    assert [2] == payloads(everything(queue))
    assert any("Europe/Atlantis" in line.getMessage() for line in caplog.records)
    assert ["a", "b"] == [schedule.name for schedule in service.schedules.list()]
    assert broken.cron == service.schedules.get("a").cron


@pytest.mark.engines("sqlite")
def test_a_start_writes_anew_what_cannot_be_read(
    service: QueueService, queue: Queue, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Start-up code adds its schedules, and one bad row must not keep a server from starting."""
    service.schedules.add("a", queue, 1, every=1, delay=60)
    service.schedules.pause("a")
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_over_sql_schedules SET definition = 'garbage'"))
    with pytest.raises(QueueError, match=r"cannot be read: .* Add the schedule again"):
        service.schedules.get("a")
    assert 2 == service.schedules.add("a", queue, 2, every=1, delay=60).payload
    assert ["Schedule 'a' could not be read, and is written anew."] == caplog.messages
    assert service.schedules.get("a").paused
    service.schedules.resume("a")
    assert {2} == set(payloads(everything(queue)))


# ---------------------------------------------------------------- engines of the user's


@pytest.mark.engines("sqlite")
def test_schedules_in_memory(database: TestDatabase) -> None:
    """On a connection that the service shares with its caller."""
    from queue_over_sql import QueueService

    assert "sqlite" == database.engine
    engine = create_engine("sqlite://")
    service = QueueService(engine)
    queue = service.create_queue("jobs")
    service.schedules.add("s", queue, 1, every=1, delay=60)
    assert len(everything(queue)) in {5, 6}
    service.reap()
    service.schedules.add("s", queue, 2, every=1, delay=60)
    assert {2} == set(payloads(everything(queue)))
    service.schedules.remove("s")
    assert [] == everything(queue)
    service.stop()
    engine.dispose()
