"""Services of this process: one for each database, kept while the process lives.

Spark uses its Python workers again and again, so a connection that is kept saves a login for each
task. Nothing here is pickled: what travels to the executors is a ``Location``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.dialects.engines import insist_on_file, read_url
from queue_over_sql.service import QueueService
from queue_over_sql.spark.collecting import spare_imports

if TYPE_CHECKING:
    from queue_over_sql.queue import Queue
    from queue_over_sql.spark.options import Location

_lock: Final = threading.Lock()
_services: Final[dict[Hashable, QueueService]] = {}


def url_of(location: Location) -> str:
    """The URL of a database that is there to be used.

    SQLite makes an empty one of a path that is mistyped, or that is of another host.

    Raises:
        ValueError: the URL cannot be found out here, or is none.
        DatabaseUnavailable: it is of a file that is not there; none is made.
    """
    text = location.resolve()
    insist_on_file(read_url(text))
    return text


def service_at(
    location: Location, retry_policies: Mapping[str, type[Any]] | None = None
) -> QueueService:
    """The service of this process on a database; not started, so it is no consumer yet.

    Args:
        location: of the database.
        retry_policies: the application's own, by name.

    Raises:
        ValueError: the URL cannot be found out here, or is none.
        UnsupportedByEngine: the driver is not installed here.
        DatabaseUnavailable: the database is a file that is not there.
    """
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
    """A queue that exists.

    Raises:
        QueueNotFound: it does not.
        DatabaseUnavailable: the database cannot be reached.
    """
    return service_at(location).queue(name)
