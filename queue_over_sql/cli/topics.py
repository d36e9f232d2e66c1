"""The commands of topics: `topic`, `subscribe` and `unsubscribe`."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

import typer

from queue_over_sql import Published
from queue_over_sql.cli.lines import LineFormat, LineReader
from queue_over_sql.cli.options import (
    CreateFileOption,
    OnConflictOption,
    QueueName,
    YesOption,
    confirm,
    message_options,
)
from queue_over_sql.cli.publish import read_argument
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.values import format_instant, parse_paths
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.values.options import TopicOptions
from queue_over_sql.values.states import OnConflict

PANEL: Final = "Topics"
PATTERN_HELP: Final = (
    "Which routing keys match: words joined by dots; * is exactly one word, # any number of words."
)
WHERE_HELP: Final = (
    "Only messages with this field in their JSON payload, e.g. address.city=Zagreb. VALUE is read "
    "as JSON if it is valid JSON, else as text. Repeatable: all must match."
)

TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", show_default=False, help="Name of the topic.")
]


commands = Commands(
    PANEL,
    "topic",
    help="Publish once to a topic; each subscribed queue gets a copy.",
)
subscriptions = Commands(PANEL)


@commands.add("create")
def create(
    session: CommandSession, *, topic: TopicName, create_file: CreateFileOption = False
) -> None:
    """Create a topic. It is safe to repeat this."""
    with session.connect(creates=create_file) as service:
        service.create_topic(topic)
    session.output.record({"topic": topic}, human=f"Topic {topic} is ready.")


@commands.add("list")
def list_topics(session: CommandSession) -> None:
    """List the topics and their numbers of subscriptions. Exit code 3: there is none."""
    with session.connect() as service:
        found = [(topic.name, len(topic.subscriptions())) for topic in service.topics()]
    session.output.listing(
        found,
        lambda row: {"topic": row[0], "subscriptions": row[1]},
        ("topic", "#subscriptions"),
        lambda row: row,
        nothing="There is no topic yet. Create one with: queue-over-sql topic create NAME",
    )


@commands.add("show")
def show(session: CommandSession, *, topic: TopicName) -> None:
    """Show the subscriptions to a topic. Exit code 3: there is none."""
    with session.connect() as service:
        found = service.topic(topic).subscriptions()
    session.output.listing(
        found,
        lambda each: {
            "topic": topic,
            "queue": each.queue,
            "pattern": each.pattern,
            "where": each.where,
            "created_at": each.created_at,
        },
        ("queue", "…pattern", "…where", "since (UTC)"),
        lambda each: (
            each.queue,
            each.pattern or '""',
            "" if each.where is None else to_json(each.where),
            format_instant(each.created_at),
        ),
        nothing=f"No queue is subscribed to topic {topic}.",
    )


@commands.add("publish")
@message_options(TopicOptions)
def publish(
    session: CommandSession,
    *,
    topic: TopicName,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD",
            show_default=False,
            help="The payload: JSON, or plain text with --text.",
        ),
    ],
    routing_key: Annotated[
        str,
        typer.Option(
            "--routing-key",
            "-r",
            metavar="KEY",
            show_default=False,
            help="Words joined by dots, such as orders.eu.paid.",
        ),
    ],
    text: Annotated[bool, typer.Option("--text", help="PAYLOAD is plain text.")] = False,
    on_conflict: OnConflictOption = "raise",
    **given: Any,
) -> None:
    """Publish a copy of a message to each queue with a matching subscription, in one transaction.

    If no subscription matches, it publishes nothing and ends with exit code 0.

    Example: queue-over-sql topic publish orders '{"id": 7}' --routing-key orders.eu.paid
    """
    content = _content(payload, text=text)
    with session.connect() as service:
        published = service.topic(topic).publish(
            content, routing_key=routing_key, on_conflict=cast("OnConflict", on_conflict), **given
        )
    _report(session, topic, published)


def _content(payload: str, *, text: bool) -> Any:
    line_format = LineFormat.TEXT if text else LineFormat.PAYLOAD
    return read_argument(LineReader("json", line_format, {}), payload, otherwise="--text").payload


def _report(session: CommandSession, topic: str, published: list[Published]) -> None:
    if session.output.machine:
        for one in published:
            session.output.record(
                {"topic": topic, "queue": one.queue, "id": one.id, "outcome": one.outcome}
            )
        return
    copies = ", ".join(f"{one.queue} (message {one.id} {one.outcome})" for one in published)
    queues = counted(len(published), "queue")
    session.output.record(
        {},
        human=f"Published to {queues}: {copies}."
        if published
        else f"No subscription to topic {topic} matches: nothing was published.",
    )


@commands.add("drop")
def drop(session: CommandSession, *, topic: TopicName, yes: YesOption = False) -> None:
    """Drop a topic with its subscriptions; the queues keep their messages."""
    with session.connect() as service:
        count = len(service.topic(topic).subscriptions())
        subscriptions = counted(count, "subscription")
        confirm(f"Drop topic {topic} with {subscriptions}?", yes=yes)
        service.drop_topic(topic)
    session.output.record(
        {"topic": topic, "dropped": True}, human=f"Dropped topic {topic} with {subscriptions}."
    )


@subscriptions.add("subscribe")
def subscribe(
    session: CommandSession,
    *,
    topic: TopicName,
    queue: QueueName,
    pattern: Annotated[str, typer.Option("--pattern", metavar="PATTERN", help=PATTERN_HELP)] = "#",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="PATH=VALUE", show_default=False, help=WHERE_HELP),
    ] = None,
) -> None:
    """Subscribe a queue to a topic.

    The queue then gets a copy of each new message that matches. A queue may have several
    subscriptions, with different patterns. If you subscribe again with the same pattern, the new
    --where replaces the old one.

    Example: queue-over-sql subscribe orders invoices --pattern 'orders.*.paid' --where country=HR
    """
    fields = parse_paths(where or (), "--where")
    with session.connect() as service:
        service.topic(topic).subscribe(queue, pattern, fields or None)
    session.output.record(
        {"topic": topic, "queue": queue, "pattern": pattern, "where": fields or None},
        human=f"Queue {queue} is subscribed to topic {topic}.",
    )


@subscriptions.add("unsubscribe")
def unsubscribe(
    session: CommandSession,
    *,
    topic: TopicName,
    queue: QueueName,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="PATTERN",
            show_default="all",
            help="Only the subscription with this pattern.",
        ),
    ] = None,
) -> None:
    """Remove the subscriptions of a queue to a topic. Exit code 3: there was none."""
    with session.connect() as service:
        ended = service.topic(topic).unsubscribe(queue, pattern)
    if not ended:
        session.output.nothing(f"Queue {queue} has no such subscription to topic {topic}.")
    session.output.record(
        {"topic": topic, "queue": queue, "unsubscribed": True},
        human=f"Queue {queue} is unsubscribed from topic {topic}.",
    )
