"""How long names and texts may be, in characters, and how large numbers."""

from __future__ import annotations

from typing import Final

LARGEST: Final = 2**63 - 1
"""The largest integer that a BIGINT holds."""
MAX_PRIORITIES: Final = 100
MAX_HEADERS_BYTES: Final = 65_536
KEY_LENGTH: Final = 200
KIND_LENGTH: Final = 100
GROUP_LENGTH: Final = 200
MOST_WEIGHT: Final = 1000
MAX_FIELDS: Final = 50
MAX_STEPS: Final = 50
STEP_LENGTH: Final = 250
CONSUMER_LENGTH: Final = 36
PREFIX_LENGTH: Final = 20
NAME_LENGTH: Final = 40
TITLE_LENGTH: Final = 255
SCHEDULE_LENGTH: Final = 200
PATTERN_LENGTH: Final = 255
OWNER_LENGTH: Final = 255
TOKEN_KEY_LENGTH: Final = 64
HANDLES_LENGTH: Final = 4000
WRITER_LENGTH: Final = 100
HISTORY_COUNTS: Final = (
    *("published", "claimed", "redelivered", "done", "retried", "failed", "rejected"),
    *("released", "claims_lost", "handler_failures", "expired"),
)
"""The counts per minute in the history, by column."""

LEAST_CLOCK_STEP_US: Final = 1_000_000
"""A smaller step back of the database's clock only delays messages by as much."""

MOST_IN_HAND: Final = 2**31 - 1
"""The largest limit of a group: as good as none."""
