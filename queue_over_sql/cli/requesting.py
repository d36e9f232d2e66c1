"""The command that asks and waits for the answer: `request`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queue_over_sql.cli.options import (
    MESSAGES_PANEL,
    ColumnOption,
    HeaderOption,
    KindOption,
    PriorityOption,
    QueueName,
)
from queue_over_sql.cli.publishing import argument_format, read_argument, wrong_columns_told
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import parse_duration, parse_pairs
from queue_over_sql.cli.wire import LineFormat, LineReader, payload_line
from queue_over_sql.json_lines import message_fields

FORMAT_HELP = (
    "What the argument is. payload: the payload as JSON (bytes: a JSON string of Base64). "
    "text: the payload as plain text. Unless given, text for a queue of text or bytes, payload "
    "otherwise."
)


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "request", panel=MESSAGES_PANEL)(request)


def request(
    session: Session,
    *,
    queue: QueueName,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD",
            show_default=False,
            help="The request: JSON, or for a queue of text the text itself (see --format).",
        ),
    ],
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            parser=parse_duration,
            show_default="30s",
            help="How long to wait for the reply.",
        ),
    ] = 30.0,
    line_format: Annotated[
        LineFormat | None,
        typer.Option("--format", metavar="payload|text", show_default=False, help=FORMAT_HELP),
    ] = None,
    kind: KindOption = None,
    header: HeaderOption = None,
    priority: PriorityOption = 0,
    column: ColumnOption = None,
) -> None:
    """Publish a message, wait for the reply that its consumer gives, and print the reply.

    A worker replies with message.reply(...). With --json the reply is printed with its kind and
    headers. Exit code 3 when no reply came in time; a request that nobody has begun with by then,
    or when this is interrupted, is taken back.

    Example: queue-over-sql request prices '{"item": "tea"}' --timeout 5s
    """
    if line_format is LineFormat.MESSAGE:
        raise typer.BadParameter("a request is a payload or text", param_hint="--format")
    options: dict[str, Any] = {
        "kind": kind,
        "headers": parse_pairs(header or (), "--header"),
        "priority": priority,
        **parse_pairs(column or (), "--column"),
    }
    with session.queue(queue) as asked:
        reader = LineReader(asked.settings.payload, line_format or argument_format(asked), {})
        question = read_argument(reader, payload).payload
        with wrong_columns_told():
            reply = asked.request(question, timeout=timeout, **options)
        if session.output.machine:
            session.output.record(message_fields(reply))
        else:
            session.output.line(payload_line(reply, "json"))
