"""Schedules and topics: what publishes by itself, and what publishes to several queues."""

from __future__ import annotations

from queue_over_sql.message import PUBLISH_OPTIONS
from queue_over_sql.topics.routing import check_routing_text, pattern_fits, payload_fits
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.operations import Call, Operations
from queue_over_sql.web.settings import Role

schedules = Operations("schedules")
topics = Operations("topics")


@schedules.add("GET", "/schedules", Role.VIEWER)
def list_schedules(call: Call) -> shapes.Schedules:
    """List all schedules, by name."""
    found = call.service.schedules.list()
    return shapes.Schedules(schedules=[showing.schedule(each, call.api.mask) for each in found])


@schedules.add("GET", "/schedules/{name:path}/upcoming", Role.VIEWER, problems=(404,))
def upcoming(call: Call, name: str, query: shapes.UpcomingQuery) -> shapes.Upcoming:
    """Show the next instants of a schedule, whether or not it is paused."""
    return shapes.Upcoming(upcoming=call.service.schedules.upcoming(name, query.count))


@schedules.add(
    "POST",
    "/schedules/{name:path}/pause",
    Role.OPERATOR,
    audited=True,
    status=204,
    problems=(404,),
)
def pause_schedule(call: Call, name: str) -> None:
    """Publish nothing until it is resumed; its messages that are not due yet are removed."""
    call.service.schedules.pause(name)
    call.audit |= {"detail": f"schedule {name}"}


@schedules.add(
    "POST",
    "/schedules/{name:path}/resume",
    Role.OPERATOR,
    audited=True,
    status=204,
    problems=(404,),
)
def resume_schedule(call: Call, name: str) -> None:
    """Go on with the next instant; what was left out in the pause does not count as missed."""
    call.service.schedules.resume(name)
    call.audit |= {"detail": f"schedule {name}"}


@schedules.add("GET", "/schedules/{name:path}", Role.VIEWER, problems=(404,))
def show_schedule(call: Call, name: str) -> shapes.Schedule:
    """Show a schedule."""
    return showing.schedule(call.service.schedules.get(name), call.api.mask)


@topics.add("GET", "/topics", Role.VIEWER)
def list_topics(call: Call) -> shapes.Topics:
    """List the names of all topics."""
    return shapes.Topics(topics=[topic.name for topic in call.service.topics()])


@topics.add("GET", "/topics/{topic}/subscriptions", Role.VIEWER, problems=(404,))
def list_subscriptions(call: Call, topic: str) -> shapes.Subscriptions:
    """List the subscriptions to a topic, by queue and pattern."""
    found = call.service.topic(topic).subscriptions()
    return shapes.Subscriptions(subscriptions=[showing.subscription(each) for each in found])


@topics.add("POST", "/topics/{topic}/messages", Role.OPERATOR, status=201, problems=(404, 409, 413))
def publish_to_topic(
    call: Call, topic: str, body: shapes.NewTopicMessage
) -> shapes.PublishedMessages:
    """Put a copy into each queue whose subscription fits: in one transaction, all or none."""
    names = [name for name in PUBLISH_OPTIONS if name != "columns"]
    options = {name: getattr(body, name) for name in names}
    done = call.service.topic(topic).publish(
        body.payload, routing_key=body.routing_key, on_conflict=body.on_conflict, **options
    )
    return shapes.PublishedMessages(messages=[showing.published(each) for each in done])


@topics.add("POST", "/topics/{topic}/route", Role.VIEWER, writes=False, problems=(404,))
def try_route(call: Call, topic: str, body: shapes.Route) -> shapes.Routed:
    """Say which queues would get a message, without publishing it."""
    key = check_routing_text("routing_key", body.routing_key)
    found = [
        each
        for each in call.service.topic(topic).subscriptions()
        if pattern_fits(each.pattern, key) and payload_fits(each.where or {}, body.payload)
    ]
    return shapes.Routed(
        queues=sorted({each.queue for each in found}),
        subscriptions=[showing.subscription(each) for each in found],
    )
