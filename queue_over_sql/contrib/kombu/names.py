"""The topics of exchanges: a topic's name tells the exchange's type and name."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from queue_over_sql.errors import TAKEN_ENDING

KINDS: Final = ("direct", "fanout", "topic")
"""The types of exchanges."""

_LONGEST: Final = 40
_HASH_LENGTH: Final = 16
# Of a name that is too long for a topic; no escape looks like it.
_HASH: Final = "_x"
_ESCAPE: Final = re.compile(rb"_(_|[0-9a-f]{2})")


def topic_name(kind: str, exchange: str) -> str:
    """The topic of an exchange: ``direct_celery``, ``fanout_celery_2epidbox``."""
    escaped = "".join(
        chr(byte) if chr(byte) in _PLAIN else "__" if byte == ord("_") else f"_{byte:02x}"
        for byte in exchange.encode()
    )
    name = f"{kind}_{escaped}"
    if TAKEN_ENDING.search(name):
        # No topic may end so: ``direct_archiv_65``.
        name = f"{name[:-1]}_{ord(name[-1]):02x}"
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(exchange.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: _LONGEST - _HASH_LENGTH - len(_HASH)].rstrip('_')}{_HASH}{digest}"


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


def exchange_of(topic: str) -> tuple[str, str] | None:
    """The type and the name of a topic's exchange.

    None if it is no exchange's topic, or the exchange's name is too long to be read from it.
    """
    kind, _, escaped = topic.partition("_")
    if kind not in KINDS or not escaped:
        return None

    def unescape(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return code if code == b"_" else bytes([int(code, 16)])

    try:
        exchange = _ESCAPE.sub(unescape, escaped.encode()).decode()
    except UnicodeDecodeError:
        return None
    return (kind, exchange) if topic_name(kind, exchange) == topic else None
