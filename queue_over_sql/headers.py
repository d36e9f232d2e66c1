"""Headers that have a meaning here: their names."""

from __future__ import annotations

from typing import Final

PREVIOUS_ERROR: Final = "previous_error"
"""The header in which a message that was sent again carries the reason it had failed for."""

REPLY_TO: Final = "reply_to"
"""The header in which a request names the queue that its reply goes to."""

CORRELATION_ID: Final = "correlation_id"
"""The header that a request and its reply share."""

UNFIT_SINCE: Final = "unfit_since"
"""The header that tells, in seconds since the epoch, since when a message that does not fit its
kind waits for a server that knows better."""

SCHEDULE: Final = "schedule"
"""The header in which a message carries the name of its schedule."""

TOPIC: Final = "topic"
"""The header that names the topic to which a message was published."""

ROUTING_KEY: Final = "routing_key"
"""The header with the routing key under which a message was published to a topic."""
