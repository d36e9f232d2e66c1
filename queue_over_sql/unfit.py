"""Messages that do not fit their kind on this server: how long they wait for one that knows better.

While servers are being replaced, an old one may claim what only a new one can read. Such a message
is given back with a growing delay, its attempts not counted. Since when it waits is kept in one of
its headers, so that all servers together count one time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import payload as payloads
from queue_over_sql.durations import MICROSECOND, instant_to_microseconds
from queue_over_sql.headers import UNFIT_SINCE
from queue_over_sql.store import Aside

if TYPE_CHECKING:
    from datetime import timedelta

    from queue_over_sql.message import Message

_SHORTEST: Final = 1_000_000
_LONGEST: Final = 300_000_000


def aside(message: Message, reason: str, now: int, timeout: timedelta) -> Aside | None:
    """How a message that does not fit is set aside; None when it has waited for long enough.

    Args:
        message: as it is without its kind.
        reason: why it does not fit.
        now: by the database's clock, in microseconds.
        timeout: the queue's ``kind_timeout``.
    """
    published = instant_to_microseconds(message.published_at, "published_at")
    since = _since(message.headers.get(UNFIT_SINCE), published, now)
    left = timeout // MICROSECOND - (now - since)
    if left <= 0:
        return None
    growing = min(_LONGEST, max(_SHORTEST, (now - since) // 2))
    headers = payloads.encode_json(message.headers | {UNFIT_SINCE: since / 1_000_000}, "headers")
    return Aside(min(growing, left), headers, reason)


def _since(header: Any, published: int, now: int) -> int:
    """What the header says, unless it is older than the message or no time at all.

    A publisher may put anything there, and one that passes headers on repeats another message's.
    """
    if isinstance(header, bool) or not isinstance(header, int | float):
        return now
    since = header * 1_000_000
    return round(since) if published <= since <= now else now
