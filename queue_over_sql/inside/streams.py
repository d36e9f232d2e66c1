"""The door for streaming engines: consumers whose claims outlive a process.

Stability: as ``queue_over_sql.inside``.
"""

from queue_over_sql.durable.consumer import (
    DEFAULT_TIMEOUT,
    AdvanceRequest,
    DurableConsumer,
    check_consumer_id,
)
from queue_over_sql.durable.round_store import Round

__all__ = [
    "DEFAULT_TIMEOUT",
    "AdvanceRequest",
    "DurableConsumer",
    "Round",
    "check_consumer_id",
]
