"""How ``last_error`` begins where the library itself writes it."""

from __future__ import annotations

import re
from typing import Final

from queue_over_sql.values.durations import duration_text

LEASE_EXPIRED: Final = "the lease expired before the message was settled"
CONSUMER_DIED: Final = "the consumer died while it held the message"
SUSPECT: Final = re.compile(re.escape(CONSUMER_DIED) + r"(?: and (\d{1,9}) others?)?: ")
"""Of a message that was with a consumer when it died, and how many others this one held."""
OUT_OF_ATTEMPTS: Final = "out of attempts: "
"""Before the reason of the last attempt."""
LAST_BEFORE: Final = "\nThe last error before: "
"""Between the reason of a recovery and the last error that was none."""
EXPIRED: Final = "expired: not started within"
"""Of a message that nobody started before it expired; the time follows."""


def not_started_within(microseconds: int | None) -> str:
    """Of a message that expired so long after its publish; None: an unknown time."""
    time = "its time" if microseconds is None else duration_text(microseconds / 1_000_000)
    return f"{EXPIRED} {time}"


REFUSED: Final = "The database refused to finish it"
"""Of a message that is held because of that."""
UNREADABLE: Final = "The database cannot read it"
"""Likewise."""
