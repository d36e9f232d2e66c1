"""Topics: subscriptions, tests of the routing, and publishing to subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql import inside
from queue_over_sql.values.options import TopicOptions, names_of
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import IDEMPOTENCY, Call, Endpoints
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

endpoints = Endpoints("topics")


@endpoints.add("GET", "/topics", Role.VIEWER)
def list_topics(call: Call) -> shapes.Topics:
    """List the names of all topics."""
    return shapes.Topics(topics=[topic.name for topic in call.service.topics()])


@endpoints.add("GET", "/topics/{topic}/subscriptions", Role.VIEWER, problems=(404,))
def list_subscriptions(call: Call, topic: str) -> shapes.Subscriptions:
    """List the subscriptions to a topic, by queue and pattern."""
    found = call.service.topic(topic).subscriptions()
    mask = call.api.mask
    return shapes.Subscriptions(subscriptions=[showing.subscription(each, mask) for each in found])


@endpoints.add(
    "POST",
    "/topics/{topic}/messages",
    Role.PUBLISHER,
    status=201,
    problems=(404, 409, 413),
    idempotent=True,
)
def publish_to_topic(
    call: Call, topic: str, body: shapes.NewTopicMessage
) -> shapes.PublishedMessages:
    """Publish a copy to each queue with a matching subscription, in one transaction.

    The header `Idempotency-Key` works as for a queue.
    """
    target = call.service.topic(topic)
    options = {name: getattr(body, name) for name in names_of(TopicOptions)}
    options |= {"routing_key": body.routing_key, "on_conflict": body.on_conflict}

    def put(connection: Connection | None) -> shapes.PublishedMessages:
        done = target.publish(body.payload, connection=connection, **options)
        return shapes.PublishedMessages(messages=[showing.published(each) for each in done])

    found = call.once(put, body)
    if IDEMPOTENCY in call.request.headers:
        for each in found.messages:
            inside.wake_consumers(call.service.queue(str(each.queue)))
    return found


@endpoints.add("POST", "/topics/{topic}/route", Role.VIEWER, writes=False, problems=(404,))
def try_route(call: Call, topic: str, body: shapes.Route) -> shapes.Routed:
    """Show which queues would get a message, without publishing it."""
    key = inside.check_routing_text("routing_key", body.routing_key)
    found = [
        each
        for each in call.service.topic(topic).subscriptions()
        if inside.pattern_fits(each.pattern, key)
        and inside.payload_fits(each.where or {}, body.payload)
    ]
    return shapes.Routed(
        queues=sorted({each.queue for each in found}),
        subscriptions=[showing.subscription(each, call.api.mask) for each in found],
    )
