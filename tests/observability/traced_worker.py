"""A process that works with OpenTelemetry and prints its spans as JSON at the end."""

from __future__ import annotations

import json
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queue_over_sql import FixedDelay, Message, QueueService
from queue_over_sql.observability.opentelemetry import OpenTelemetryObserver


def spans_of(exporter: InMemorySpanExporter) -> list[dict[str, Any]]:
    """The finished spans, in plain values."""
    return [
        {
            "name": span.name,
            "kind": span.kind.name,
            "trace": span.context.trace_id,
            "span": span.context.span_id,
            "parent": None if span.parent is None else span.parent.span_id,
            "links": [[link.context.trace_id, link.context.span_id] for link in span.links],
            "attributes": dict(span.attributes or {}),
            "status": span.status.status_code.name,
        }
        for span in exporter.get_finished_spans()
    ]


def main(url: str, count: int) -> None:
    """Handle so many messages, each of which fails at its first attempt if it says so."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with QueueService(url, observer=OpenTelemetryObserver(provider)) as service:
        service.create_queue("jobs", retry=FixedDelay(0))
        worker = service.worker(concurrency=1, prefetch=1, ack="each")
        done = 0

        @worker.handle("jobs")
        def handle(message: Message) -> None:
            nonlocal done
            if message.payload == "fails" and message.attempt == 1:
                raise ConnectionError("s3cret")
            if message.payload == "goes on":
                service.queue("others").publish("x")
            done += 1
            if done == count:
                worker.stop()

        worker.run()
    sys.stdout.write(json.dumps(spans_of(exporter)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
