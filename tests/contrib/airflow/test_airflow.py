"""Messages that become events of Airflow: run by `./scripts/airflow`, where Airflow is."""

from __future__ import annotations

import asyncio
import base64
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from queue_over_sql import QueueService

pytest.importorskip("airflow", reason="Airflow has an environment of its own: ./scripts/airflow")

from airflow.models.connection import Connection
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import AckTimeout, SharedStreamManager

from queue_over_sql.contrib.airflow.stream import url_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from queue_over_sql import Queue

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[3]
MESSAGES = 60


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue[Any]]:
    """A queue of JSON, and the connection of Airflow to its database."""
    file = tmp_path / "queues.db"
    monkeypatch.setenv("AIRFLOW_CONN_QUEUE_OVER_SQL_DEFAULT", f"sqlite:///{file}")
    with QueueService(f"sqlite:///{file}") as service:
        yield service.create_queue("orders", archive="all", max_attempts=1000)


class Triggerer:
    """What Airflow's triggerer does with a trigger, with its own manager of streams."""

    def __init__(self, **arguments: Any) -> None:
        self.manager = SharedStreamManager(**arguments)
        path, stored = MessageQueueTrigger(scheme="queue-over-sql", queue_name="orders").serialize()
        self.trigger = resolve_name(path)(**stored)
        self.key = self.trigger.shared_stream_key()

    async def fired(self, *, takes: bool = True) -> AsyncGenerator[tuple[Any, int | None], None]:
        """The events, and by which number Airflow confirms each."""
        stream = self.manager.subscribe(trigger_id=1, trigger=self.trigger, key=self.key)
        async for event in self.trigger.filter_shared_stream(stream):
            number = self.manager.bind_pending_event(trigger_id=1, key=self.key) if takes else None
            yield event.payload, number

    async def end(self) -> None:
        await self.manager.unsubscribe(1, self.key)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a database sets no event
            await asyncio.sleep(0.02)


def numbers(queue: Queue[Any]) -> list[int]:
    return sorted(message.payload["number"] for message in queue.archive.messages().list())


def test_a_message_is_acked_when_airflow_has_stored_its_event(queue: Queue[Any]) -> None:
    """In order; what was not stored when the triggerer ends is given back, and fired again."""
    queue.publish_many([{"number": number} for number in range(4)])

    async def run() -> None:
        triggerer = Triggerer()
        async with aclosing(triggerer.fired()) as events, asyncio.timeout(30):
            fired = [await anext(events) for _ in range(3)]
            assert [0, 1, 2] == [payload["payload"]["number"] for payload, _ in fired]
            assert (4, 0) == (queue.stats().claimed, queue.stats().done)
            triggerer.manager.confirm_persisted([number for _, number in fired[:2]])
            await until(lambda: queue.stats().done == 2)
            await triggerer.end()
        assert [0, 1] == numbers(queue)
        assert (2, 0) == (queue.stats().ready, queue.stats().claimed)
        again = Triggerer()
        async with aclosing(again.fired()) as events, asyncio.timeout(30):
            assert 2 == (await anext(events))[0]["payload"]["number"]
            await again.end()

    asyncio.run(run())


def test_an_event_that_the_triggerer_did_not_take_is_fired_again(queue: Queue[Any]) -> None:
    """Airflow counts it as accepted when it ends a trigger just before it takes the event."""
    queue.publish({"number": 0})

    async def run() -> None:
        triggerer = Triggerer()
        async with aclosing(triggerer.fired(takes=False)) as events, asyncio.timeout(30):
            await anext(events)
            await triggerer.end()

    asyncio.run(run())
    assert (1, 0, 0) == (queue.stats().ready, queue.stats().claimed, queue.stats().done)


def test_an_event_that_is_not_stored_in_time_counts_as_an_attempt(queue: Queue[Any]) -> None:
    """So that an event that Airflow can never store ends as a dead letter."""
    queue.publish({"number": 0})

    async def run() -> None:
        triggerer = Triggerer(ack_timeout=0.2)
        async with aclosing(triggerer.fired()) as events, asyncio.timeout(30):
            await anext(events)
            with pytest.raises(AckTimeout):
                await anext(events)
            await until(lambda: queue.stats().claimed == 0)
            await triggerer.end()

    asyncio.run(run())
    message = queue.messages().first()
    assert message is not None
    assert (1, "Airflow did not store the event in time") == (message.attempt, message.last_error)


def test_a_task_that_waits_takes_one_message(queue: Queue[Any]) -> None:
    """Airflow would drop the events after the first."""
    queue.publish_many([{"number": number} for number in range(3)])

    async def run() -> None:
        triggerer = Triggerer()
        triggerer.trigger.task_instance = SimpleNamespace(task_id="wait")
        events = triggerer.fired()
        async with asyncio.timeout(30):
            _, number = await anext(events)
            second = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            triggerer.manager.confirm_persisted([number])
            await until(lambda: queue.stats().done == 1)
            assert not second.done()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            await triggerer.end()

    asyncio.run(run())
    assert [0] == numbers(queue)
    assert (2, 0) == (queue.stats().ready, queue.stats().claimed)


def test_an_event_is_plain_json(queue: Queue[Any]) -> None:
    """Bytes, too, so that Airflow can store each."""
    with QueueService(os.environ["AIRFLOW_CONN_QUEUE_OVER_SQL_DEFAULT"]) as service:
        service.drop_queue(queue.name)
        service.create_queue("orders", payload="bytes").publish(
            b"\x00\xff", headers={"from": "shop"}
        )

    async def run() -> Any:
        triggerer = Triggerer()
        async with aclosing(triggerer.fired()) as events, asyncio.timeout(30):
            payload, _ = await anext(events)
            await triggerer.end()
            return payload

    payload = asyncio.run(run())
    assert base64.b64encode(b"\x00\xff").decode() == payload["payload"]
    assert ("base64", {"from": "shop"}) == (payload["payload_encoding"], payload["headers"])
    assert {"id", "queue", "kind", "attempt", "published_at"} <= set(payload)


def test_the_triggerer_makes_the_trigger_again_from_what_airflow_stores() -> None:
    """Airflow compares by what is stored, so equal arguments are one trigger."""
    arguments = {"queue_name": "orders", "conn_id": "shop", "consumer_timeout": 9.5}
    path, stored = MessageQueueTrigger(scheme="queue-over-sql", **arguments).serialize()
    again = resolve_name(path)(**stored)
    assert isinstance(again, BaseEventTrigger)
    assert ((path, stored), arguments) == (again.serialize(), stored)
    with pytest.raises(RuntimeError, match=r"Airflow 3\.3"):
        again.run()


def test_connections_of_airflow_name_databases() -> None:
    """With the driver that the service takes by itself."""
    for uri, expected in {
        "postgres://me:s%40@db:5433/shop?sslmode=require": (
            "postgresql://me:s%40@db:5433/shop?sslmode=require"
        ),
        "mysql://me@db/shop": "mysql://me@db/shop",
        "sqlite:////data/queues.db": "sqlite:////data/queues.db",
    }.items():
        found = url_of(Connection(uri=uri)).render_as_string(hide_password=False)
        assert expected == found, uri


def test_the_sample_of_the_page_is_a_dag(tmp_path: Path) -> None:
    """Its asset is watched by the trigger, and its DAG waits for the asset."""
    page = (ROOT / "docs" / "asyncio.md").read_text(encoding="utf-8")
    code = page.partition("<!-- file: orders.py -->\n```python\n")[2].partition("```")[0]
    (tmp_path / "orders.py").write_text(code, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "orders.py"))
    path, stored = names["orders"].watchers[0].trigger.serialize()
    assert "queue_over_sql.contrib.airflow.trigger.QueueTrigger" == path
    assert ("orders", "shop") == (stored["queue_name"], stored["conn_id"])


@pytest.mark.chaos
@pytest.mark.timeout(280)
def test_no_message_is_lost_when_triggerers_are_killed(queue: Queue[Any], tmp_path: Path) -> None:
    """``kill -9`` before an event is stored, and again before it is acked: all are stored."""
    asset = _watched(uuid4().hex, queue_name="orders", consumer_timeout=3.0)
    queue.publish_many([{"number": number} for number in range(MESSAGES)])
    times: list[Callable[[], bool]] = [
        lambda: queue.stats().claimed > 0,
        lambda: bool(_stored(asset)),
        lambda: queue.stats().done == MESSAGES,
    ]
    for is_time in times:
        with (tmp_path / "triggerer.log").open("ab") as log:
            triggerer = subprocess.Popen(
                [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"],
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        try:
            ends = time.monotonic() + 90
            while not is_time():
                assert time.monotonic() < ends, (tmp_path / "triggerer.log").read_text()[-3000:]
                assert triggerer.poll() is None, "the triggerer ended"
                time.sleep(0.02)
        finally:
            os.killpg(triggerer.pid, signal.SIGKILL)
            triggerer.wait()
        # What was acked is stored.
        assert set(numbers(queue)) <= set(_stored(asset))
        sys.stdout.write(f"{len(_stored(asset))} events, {queue.stats().done} acked\n")
    assert list(range(MESSAGES)) == sorted(set(_stored(asset)))
    assert list(range(MESSAGES)) == numbers(queue)


def _watched(name: str, **arguments: Any) -> int:
    """Make an asset and its watcher in Airflow's database, as the scheduler does for a DAG's."""
    from airflow.models.asset import AssetActive, AssetModel, AssetWatcherModel
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    trigger = MessageQueueTrigger(scheme="queue-over-sql", **arguments)
    with create_session() as session:
        # Triggers of tests before, whose databases are gone.
        for each in session.query(AssetWatcherModel).all():
            session.delete(each)
        for each in session.query(Trigger).all():
            session.delete(each)
        asset = AssetModel(name=name, uri=f"queue://{name}", group="asset")
        row = Trigger(*trigger.serialize())
        session.add_all([asset, row])
        session.flush()
        session.add(AssetActive.for_asset(asset))
        session.add(AssetWatcherModel(name="watcher", asset_id=asset.id, trigger_id=row.id))
        return int(asset.id)


def _stored(asset: int) -> list[int]:
    """The numbers in the events that Airflow stored."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(AssetEvent).filter_by(asset_id=asset).order_by(AssetEvent.id).all()
        return [event.extra["payload"]["payload"]["number"] for event in found]
