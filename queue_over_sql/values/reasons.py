"""How ``last_error`` begins where the library itself writes it."""

from __future__ import annotations

from typing import Final

LEASE_EXPIRED: Final = "the lease expired before the message was settled"
CONSUMER_DIED: Final = "the consumer died while it held the message"
OUT_OF_ATTEMPTS: Final = "out of attempts: "
"""Before the reason of the last attempt."""
LAST_BEFORE: Final = "\nThe last error before: "
"""Between the reason of a recovery and the last error that was none."""
REFUSED: Final = "The database refused to finish it"
"""Of a message that is held because of that."""
