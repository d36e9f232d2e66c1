"""Traces and metrics for OpenTelemetry. They need the extra ``opentelemetry``.

Names follow the semantic conventions for messaging,
https://opentelemetry.io/docs/specs/semconv/messaging/. The trace context travels in the headers of
messages, as W3C ``traceparent`` and ``tracestate``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import MessageFacts, Observer

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
except ImportError as error:
    msg = "Traces require OpenTelemetry: pip install 'queue-over-sql[opentelemetry]'"
    raise ImportError(msg) from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

SYSTEM: Final = "queue_over_sql"
"""The value of ``messaging.system``."""

_NAME: Final = "queue_over_sql"
_DEFAULT: Final = Context()


@dataclasses.dataclass
class _Sent:
    """What a publish has sent so far; ``load`` and topics tell it part by part."""

    by: OpenTelemetryObserver
    count: int = 0
    ids: Sequence[int] = ()

    def attributes(self) -> dict[str, Any]:
        if self.count == len(self.ids) == 1:
            return {"messaging.message.id": str(self.ids[0])}
        return {"messaging.batch.message_count": self.count} if self.count else {}


# The publishes that run in this context, the innermost last.
_sending: ContextVar[tuple[_Sent, ...]] = ContextVar("sending", default=())


class OpenTelemetryObserver(Observer):
    """Creates spans and measures durations; pass it to ``QueueService(observer=…)``.

    A publish is a producer span ``publish QUEUE``, and the message carries its context. A claim is
    a client span ``receive QUEUE``, linked to the publish spans of its messages. A handler call is
    a consumer span ``process QUEUE``. At the first attempt it is a child of the publish. At later
    attempts, and for a batch, it starts a new trace that links to the publish.

    Metrics: ``messaging.client.operation.duration``, ``messaging.client.sent.messages``,
    ``messaging.client.consumed.messages`` and ``messaging.process.duration``, in seconds and
    messages.

    Args:
        tracer_provider: default: the global one.
        meter_provider: default: the global one.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a publish or a claim."
        )
        self._process = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of a call of a handler."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages published."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages claimed."
        )

    @contextlib.contextmanager
    def publishing(self, queue: str, count: int) -> Iterator[dict[str, str]]:
        """Wrap the publish in a span, whose context each message gets."""
        attributes = _attributes(queue, "publish", "send")
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        began = time.monotonic()
        failure: str | None = None
        sent = _Sent(self)
        before = _sending.set((*_sending.get(), sent))
        with self._span(f"publish {queue}", SpanKind.PRODUCER, attributes) as span:
            headers: dict[str, str] = {}
            propagate.inject(headers)
            try:
                yield headers
            except BaseException as error:
                failure = _type_of(error)
                raise
            finally:
                _sending.reset(before)
                span.set_attributes(sent.attributes())
                measured = _measured(attributes, failure)
                self._operation.record(time.monotonic() - began, measured)

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Count it, and note it for the span of the publish, if there is one."""
        del seconds
        attributes = _attributes(queue, "publish", "send")
        self._sent.add(count, _measured(attributes, None))
        sent = next((each for each in reversed(_sending.get()) if each.by is self), None)
        if sent is not None:
            sent.count += max(count, len(ids))
            sent.ids = ids

    def claimed(self, queue: str, messages: Sequence[MessageFacts], seconds: float) -> None:
        """Record a span for the claim."""
        attributes = _attributes(queue, "receive", "receive") | _about(messages)
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"receive {queue}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(messages),
            start_time=ended - int(seconds * 1e9),
        )
        span.end(ended)
        measured = _measured(attributes, None)
        self._operation.record(seconds, measured)
        self._consumed.add(len(messages), measured)

    @contextlib.contextmanager
    def handling(self, queue: str, messages: Sequence[MessageFacts]) -> Iterator[None]:
        """Wrap the handler call in a span."""
        attributes = _attributes(queue, "process", "process") | _about(messages)
        parent, links = None, _links(messages)
        if len(messages) == 1:
            attributes["queue_over_sql.attempt"] = messages[0].attempt
            if messages[0].attempt == 1 and links:
                parent, links = _context_of(messages[0]), []
        # Without a parent it begins a new trace, whatever runs around the worker.
        context = _DEFAULT if parent is None else parent
        with self._span(f"process {queue}", SpanKind.CONSUMER, attributes, context, links):
            yield

    def handled(
        self,
        queue: str,
        messages: Sequence[MessageFacts],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Record the duration."""
        del messages
        failure = None if error is None else _type_of(error)
        attributes = _measured(_attributes(queue, "process", "process"), failure)
        self._process.record(seconds, attributes)

    @contextlib.contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            context=context,
            kind=kind,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                # Only its type, because its text may contain parts of a payload.
                span.set_attribute("error.type", _type_of(error))
                span.set_status(Status(StatusCode.ERROR, _type_of(error)))
                raise


def _attributes(queue: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }


def _about(messages: Sequence[MessageFacts]) -> dict[str, Any]:
    if len(messages) == 1:
        return {"messaging.message.id": str(messages[0].id)}
    return {"messaging.batch.message_count": len(messages)}


def _measured(attributes: Mapping[str, Any], failure: str | None) -> dict[str, Any]:
    # Allowed dimensions of metrics: nothing that grows with the number of messages.
    grows = ("messaging.message.id", "messaging.batch.message_count")
    kept = {name: value for name, value in attributes.items() if name not in grows}
    return kept if failure is None else kept | {"error.type": failure}


def _links(messages: Sequence[MessageFacts]) -> list[Link]:
    # Messages that were published together share one context.
    contexts = {
        (found.trace_id, found.span_id): found
        for message in messages
        if (found := _published_in(message)) is not None
    }
    return [Link(context) for context in contexts.values()]


def _published_in(message: MessageFacts) -> SpanContext | None:
    context = trace.get_current_span(_context_of(message)).get_span_context()
    return context if context.is_valid else None


def _context_of(message: MessageFacts) -> Context:
    # Anybody can set headers; a value that is not text is ignored.
    texts = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return propagate.extract(texts, context=_DEFAULT)


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
