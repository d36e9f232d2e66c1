"""What the tests of kombu's transport share."""

from __future__ import annotations

from typing import Any

import kombu

import queue_over_sql.contrib.kombu

URL = f"{queue_over_sql.contrib.kombu.SCHEME}+{{}}"
QUICKLY = {"consumer_timeout": 3.0, "reaper_interval": 0.2}
"""The arguments of a service whose death is noticed soon."""

ACCEPTED = ["json", "pickle", "text/plain"]


def connect(url: str, **options: Any) -> Any:
    """A connection to the queues of a database."""
    return kombu.Connection(URL.format(url), transport_options=options)


def get(connection: Any, *queues: Any, timeout: float = 10.0, **options: Any) -> list[Any]:
    """The messages of one delivery; none of them is settled."""
    got: list[Any] = []
    with connection.Consumer(queues, on_message=got.append, accept=ACCEPTED, **options):
        connection.drain_events(timeout=timeout)
    return got
