"""Arguments and options that several commands share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from queue_over_sql.cli.values import parse_duration, parse_instant

QUEUES_PANEL = "Queues"
MESSAGES_PANEL = "Messages"
MONITORING_PANEL = "Looking"
RUNNING_PANEL = "Running"

QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", show_default=False, help="Name of the queue.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")
]
KeyFilter = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only the message with this key.")
]
KindFilter = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only messages of this kind.")
]
LeaseOption = Annotated[
    float | None,
    typer.Option(
        "--lease",
        metavar="DURATION",
        parser=parse_duration,
        show_default=False,
        help="How long a claim holds without being extended.",
    ),
]
DelayOption = Annotated[
    float | None,
    typer.Option(
        "--delay",
        metavar="DURATION",
        parser=parse_duration,
        show_default=False,
        help="Deliver only after this long.",
    ),
]
AtOption = Annotated[
    datetime | None,
    typer.Option(
        "--at",
        metavar="INSTANT",
        parser=parse_instant,
        show_default=False,
        help="Deliver only from this instant on: ISO 8601 with an offset.",
    ),
]
ConsumerTimeoutOption = Annotated[
    float,
    typer.Option(
        "--consumer-timeout",
        metavar="DURATION",
        parser=parse_duration,
        show_default="30s",
        help="Without a sign of life for this long a consumer counts as dead and its messages "
        "come back.",
    ),
]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something irreversible, unless `yes`; leaves with exit code 1 on a no."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
