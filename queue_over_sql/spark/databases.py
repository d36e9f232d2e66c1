"""The location of a database, and one service per database in this process."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import QueueService
from queue_over_sql.inside.databases import (
    check_table_prefix,
    insist_on_file,
    read_url,
    shown_place,
)
from queue_over_sql.spark.options import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql import Queue


_DAEMON: Final = "pyspark.daemon"
_TURNS: Final = (2, 8, 32)
_visits: Final[dict[int, int]] = {}


def spare_imports() -> None:
    """Exclude imported modules from garbage collection in a Spark worker.

    It does so only a few times, the last time when earlier tasks have imported everything. Objects
    alive then are never collected. Other programs must decide this themselves.
    """
    process = os.getpid()
    visits = _visits[process] = _visits.get(process, 0) + 1
    if visits in _TURNS and is_worker():
        gc.collect()
        gc.freeze()


def is_worker() -> bool:
    """Whether this process was forked by Spark's daemon of Python workers."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON


_lock: Final = threading.Lock()
_services: Final[dict[Hashable, QueueService]] = {}


def url_of(location: Location) -> str:
    """The URL of an existing database.

    SQLite would create an empty database for a mistyped path, or a path of another host. Here that
    raises ``DatabaseUnavailable``.
    """
    text = location.resolve()
    insist_on_file(read_url(text))
    return text


def service_at(
    location: Location, retry_policies: Mapping[str, type[Any]] | None = None
) -> QueueService:
    """This process's service for a database; not started, so it is not a consumer yet."""
    spare_imports()
    url = url_of(location)
    # A forked worker must not use its parent's connections.
    policies = tuple((retry_policies or {}).items())
    key = (os.getpid(), url, location.schema, location.table_prefix, policies)
    with _lock:
        service = _services.get(key)
        if service is None:
            service = QueueService(
                url,
                schema=location.schema,
                table_prefix=location.table_prefix,
                consumer_name="spark",
                retry_policies=retry_policies,
            )
            _services[key] = service
        return service


def queue_at(location: Location, name: str) -> Queue:
    """Open an existing queue."""
    return service_at(location).queue(name)


def location_of(
    url: str | None,
    url_env: str | None,
    url_file: str | None,
    schema: str | None,
    table_prefix: str,
) -> Location:
    """The database's location, from the arguments of a public function: exactly one of the URLs."""
    given = [
        name
        for name, value in (("url", url), ("url_env", url_env), ("url_file", url_file))
        if value
    ]
    if len(given) != 1:
        named = " and ".join(given) or "none"
        raise ValueError(f"give exactly one of url, url_env and url_file, not {named}")
    return Location(
        url=url,
        url_env=url_env,
        url_file=url_file,
        schema=schema,
        table_prefix=check_table_prefix(table_prefix),
    )


def options_of(location: Location) -> dict[str, str]:
    """The options of the format for a database."""
    options = {
        "url": location.url,
        "urlEnv": location.url_env,
        "urlFile": location.url_file,
        "schema": location.schema,
        "tablePrefix": location.table_prefix,
    }
    return {name: value for name, value in options.items() if value is not None}


def label_of(location: Location) -> str:
    """A database's name for people, without user and password: ``db.example.org:5432/app``."""
    url = read_url(location.resolve())
    place = shown_place(url) if url.host else url.database or url.drivername
    return place if location.schema is None else f"{place}?schema={location.schema}"


def queues_of(service: QueueService, names: Sequence[str] | None) -> list[Queue]:
    """The named queues, or all queues."""
    if names is None:
        return service.queues()
    return [service.queue(name) for name in dict.fromkeys(names)]
