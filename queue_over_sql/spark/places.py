"""Where a database is, of the arguments that all functions on Spark share, and how it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.adoption import AdoptedQueue
from queue_over_sql.dialects.engines import read_url, shown_place
from queue_over_sql.schema import check_table_prefix
from queue_over_sql.spark.options import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql.queue import Queue
    from queue_over_sql.service import QueueService


def location_of(
    url: str | None,
    url_env: str | None,
    url_file: str | None,
    schema: str | None,
    table_prefix: str,
) -> Location:
    """Where the database is, of what a function was given.

    Args:
        url: an SQLAlchemy URL.
        url_env: instead of it the environment variable that holds it.
        url_file: the same for a file.
        schema: database schema of the tables; None for the connection's default.
        table_prefix: what the names of the queues' tables begin with.

    Raises:
        ValueError: not exactly one of the URLs is given, or the prefix is none.
    """
    given = [
        name
        for name, value in (("url", url), ("url_env", url_env), ("url_file", url_file))
        if value
    ]
    if len(given) != 1:
        named = " and ".join(given) or "none"
        raise ValueError(
            f"name the database by exactly one of url, url_env and url_file, not {named}"
        )
    return Location(
        url=url,
        url_env=url_env,
        url_file=url_file,
        schema=schema,
        table_prefix=check_table_prefix(table_prefix),
    )


def options_of(location: Location) -> dict[str, str]:
    """The options of the format that name a database."""
    options = {
        "url": location.url,
        "urlEnv": location.url_env,
        "urlFile": location.url_file,
        "schema": location.schema,
        "tablePrefix": location.table_prefix,
    }
    return {name: value for name, value in options.items() if value is not None}


def label_of(location: Location) -> str:
    """A database in words, without user and password: ``db.example.org:5432/app``."""
    url = read_url(location.resolve())
    place = shown_place(url) if url.host else url.database or url.drivername
    return place if location.schema is None else f"{place}?schema={location.schema}"


def queues_of(service: QueueService, names: Sequence[str] | None) -> list[Queue]:
    """The queues that are meant: those named, or all.

    Raises:
        QueueNotFound: there is none of that name.
    """
    if names is None:
        return service.queues()
    return [service.queue(name) for name in dict.fromkeys(names)]


def is_adopted(queue: Queue) -> bool:
    """Whether its messages are rows of a table of the user's."""
    return isinstance(queue, AdoptedQueue)
