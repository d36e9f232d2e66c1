"""kombu and Celery: a transport whose queues are tables of an SQL database.

::

    import queue_over_sql.contrib.kombu  # so that kombu knows the URL

    app = Celery(broker="queue-over-sql+postgresql://app@db/app")

What stands behind the first ``+`` is the database's SQLAlchemy URL.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

from queue_over_sql.contrib.kombu.channel import Channel
from queue_over_sql.contrib.kombu.transport import Transport

SCHEME: Final = "queue-over-sql"
"""What the URL of a broker begins with."""

TRANSPORT_ALIASES[SCHEME] = f"{__name__}:{Transport.__name__}"

__all__ = ["SCHEME", "Channel", "Transport"]
