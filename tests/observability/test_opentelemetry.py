"""Traces pass through the headers of messages from one process to another."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queue_over_sql import DuplicateKey
from queue_over_sql.observability.opentelemetry import OpenTelemetryObserver
from tests.contract.existing_tables.users_tables import Invoice, create_invoices
from tests.observability import traced_worker
from tests.observability.traced_worker import spans_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

ROOT = Path(__file__).parents[2]
LONGEST_WAIT = 120.0

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


class Traced:
    """A service with its spans and metrics."""

    def __init__(self, make_service: MakeService) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")
        meters = MeterProvider([self._reader])
        self.service: QueueService = make_service(observer=OpenTelemetryObserver(provider, meters))

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Those that have ended."""
        return spans_of(self._exporter)

    def span(self, name: str) -> dict[str, Any]:
        """The one of this name."""
        (found,) = (span for span in self.spans if span["name"] == name)
        return found

    def measured(self) -> dict[str, list[dict[str, Any]]]:
        """The attributes of each metric's points, by its name."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: [dict(point.attributes or {}) for point in metric.data.data_points]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def traced(make_service: MakeService) -> Traced:
    """A service on the test's database."""
    return Traced(make_service)


def work(url: str, count: int) -> list[dict[str, Any]]:
    """Handle so many messages in another process; its spans."""
    command = [sys.executable, "-m", traced_worker.__name__, url, str(count)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_WAIT, check=True
    )
    assert "s3cret" not in done.stdout
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    return spans


def test_a_trace_crosses_processes(traced: Traced, database: TestDatabase) -> None:
    """The first attempt is a child of the publish; a retry links to it."""
    traced.service.create_queue("others")
    queue = traced.service.create_queue("jobs")
    with traced.tracer.start_as_current_span("order"):
        good = queue.publish("goes on").id
        queue.publish("fails")
    spans = work(database.url, 2)
    order = traced.span("order")
    published = [span for span in traced.spans if span["name"] == "publish jobs"]
    assert [(span["trace"], span["parent"]) for span in published] == [
        (order["trace"], order["span"])
    ] * 2
    assert "PRODUCER" == published[0]["kind"]
    assert {
        "messaging.system": "queue_over_sql",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "jobs",
        "messaging.message.id": str(good),
    } == published[0]["attributes"]
    first, failed, again = (span for span in spans if span["name"] == "process jobs")
    for span, of in ((first, published[0]), (failed, published[1])):
        assert "CONSUMER" == span["kind"]
        assert of["trace"] == span["trace"]
        assert of["span"] == span["parent"]
        assert [] == span["links"]
    assert [[published[1]["trace"], published[1]["span"]]] == again["links"]
    assert again["parent"] is None
    assert order["trace"] != again["trace"]
    assert ["UNSET", "ERROR", "UNSET"] == [span["status"] for span in (first, failed, again)]
    assert "ConnectionError" == failed["attributes"]["error.type"]
    (further,) = (span for span in spans if span["name"] == "publish others")
    assert order["trace"] == further["trace"]
    assert first["span"] == further["parent"]
    received = [span for span in spans if span["name"] == "receive jobs"]
    assert [[published[0]["trace"], published[0]["span"]]] == received[0]["links"]


@pytest.mark.engines("sqlite")
def test_topics_schedules_requests_and_batches(traced: Traced) -> None:
    """All of them carry the context of their publish."""
    queue = traced.service.create_queue("jobs")
    topic = traced.service.create_topic("news")
    topic.subscribe(queue)
    topic.publish("x", routing_key="a")
    queue.publish_many(["a", "b", "c"])
    queue.load(["d"])
    traced.service.schedules.add("often", queue, "e", every=timedelta(seconds=1))
    wait_until(lambda: traced.service.reap().scheduled)
    messages = queue.consume(5)
    parents = {
        "news": [messages[0]],
        "jobs": messages[1:4],
    }
    for name, of in parents.items():
        spans = [span for span in traced.spans if span["name"] == f"publish {name}"]
        contexts = {f"00-{s['trace']:032x}-{s['span']:016x}" for s in spans}
        assert {message.headers["traceparent"][:-3] for message in of} <= contexts, name
    assert all("traceparent" in message.headers for message in messages)
    (batch,) = (
        s for s in traced.spans if s["attributes"].get("messaging.batch.message_count") == 3
    )
    assert "publish jobs" == batch["name"]


@pytest.mark.engines("sqlite")
def test_a_span_has_the_sum_of_its_publish(traced: Traced, engine: Engine) -> None:
    """A load tells each batch, a topic each copy. What has no span of its own changes no other."""
    queue = traced.service.create_queue("jobs")
    topic = traced.service.create_topic("news")
    for name in ("jobs", "others"):
        topic.subscribe(traced.service.create_queue(name))
    create_invoices(engine, 2)
    adopted = traced.service.adopt_queue("billing", Invoice)
    with traced.tracer.start_as_current_span("order"):
        assert 5 == queue.load(range(5), batch_size=2)
        topic.publish("x", routing_key="a")
        assert 2 == adopted.enqueue()
        queue.reject(queue.consume(1), "no")
        assert 1 == queue.archive.messages().requeue()
    assert {} == traced.span("order")["attributes"]
    counts = {
        span["name"]: span["attributes"]["messaging.batch.message_count"]
        for span in traced.spans
        if span["name"].startswith("publish ")
    }
    assert {"publish jobs": 5, "publish news": 2} == counts


@pytest.mark.engines("sqlite")
def test_failures_and_metrics(traced: Traced) -> None:
    """An error is told by its type alone; no metric has an id."""
    queue = traced.service.create_queue("jobs")
    queue.publish("x", key="k")
    with pytest.raises(DuplicateKey):
        queue.publish("y", key="k")
    (message,) = queue.consume()
    message.ack()
    failed = traced.spans[1]
    kind = "queue_over_sql.errors.DuplicateKey"
    assert "ERROR" == failed["status"]
    assert kind == failed["attributes"]["error.type"]
    plain = {
        "messaging.system": "queue_over_sql",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "jobs",
    }
    receive = plain | {
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
    }
    assert {
        "messaging.client.operation.duration": [plain, plain | {"error.type": kind}, receive],
        "messaging.client.sent.messages": [plain],
        "messaging.client.consumed.messages": [receive],
    } == traced.measured()


@pytest.mark.engines("sqlite")
def test_headers_that_are_no_context(traced: Traced, service: QueueService) -> None:
    """Anybody may put anything there: such a message begins a trace of its own."""
    service.create_queue("jobs").publish("x", headers={"traceparent": 7, "tracestate": "x"})
    worker = traced.service.worker(concurrency=1)
    worker.handle("jobs")(lambda _: worker.stop())
    worker.run()
    span = traced.span("process jobs")
    assert span["parent"] is None
    assert [] == span["links"]
