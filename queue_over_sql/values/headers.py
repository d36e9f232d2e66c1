"""The headers that the library itself gives to messages."""

from __future__ import annotations

from typing import Final

PREVIOUS_ERROR: Final = "previous_error"
"""The header of a requeued message that holds the reason of its earlier failure."""

REQUEUED_FROM: Final = "requeued_from"
"""The header of a requeued message that holds the id of its earlier life."""

REPLY_TO: Final = "reply_to"
"""The header of a request that names its reply queue."""

CORRELATION_ID: Final = "correlation_id"
"""The header by which a reply is matched to its request."""

RESULT: Final = "ack_result"
"""The header of an archived message that holds the result that its consumer acked it with."""

DEAD_LETTER: Final = "dead_letter"
"""The header of a message in a ``dead_letter_queue`` that says where it died: its queue, id, key
and attempts there, its outcome and the reason."""

UNFIT_SINCE: Final = "unfit_since"
"""The header of a message that does not fit its kind: since when it is deferred, in seconds since
the epoch."""

SCHEDULE: Final = "schedule"
"""The header that names the schedule of a message."""

TOPIC: Final = "topic"
"""The header that names the topic of a message."""

ROUTING_KEY: Final = "routing_key"
"""The header that holds the routing key of a message to a topic."""
