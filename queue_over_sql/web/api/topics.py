"""Topics: subscriptions, tests of the routing, and publishing to subscribers."""

from __future__ import annotations

from queue_over_sql import inside
from queue_over_sql.values.options import TopicOptions, names_of
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import Call, Endpoints
from queue_over_sql.web.settings import Role

endpoints = Endpoints("topics")


@endpoints.add("GET", "/topics", Role.VIEWER)
def list_topics(call: Call) -> shapes.Topics:
    """List the names of all topics."""
    return shapes.Topics(topics=[topic.name for topic in call.service.topics()])


@endpoints.add("GET", "/topics/{topic}/subscriptions", Role.VIEWER, problems=(404,))
def list_subscriptions(call: Call, topic: str) -> shapes.Subscriptions:
    """List the subscriptions to a topic, by queue and pattern."""
    found = call.service.topic(topic).subscriptions()
    return shapes.Subscriptions(subscriptions=[showing.subscription(each) for each in found])


@endpoints.add(
    "POST", "/topics/{topic}/messages", Role.OPERATOR, status=201, problems=(404, 409, 413)
)
def publish_to_topic(
    call: Call, topic: str, body: shapes.NewTopicMessage
) -> shapes.PublishedMessages:
    """Publish a copy to each queue with a matching subscription, in one transaction."""
    options = {name: getattr(body, name) for name in names_of(TopicOptions)}
    done = call.service.topic(topic).publish(
        body.payload, routing_key=body.routing_key, on_conflict=body.on_conflict, **options
    )
    return shapes.PublishedMessages(messages=[showing.published(each) for each in done])


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
        subscriptions=[showing.subscription(each) for each in found],
    )
