"""Fingerprints of errors: equal for errors that differ only in ids, numbers and quoted values."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from queue_over_sql.values.reasons import (
    CONSUMER_DIED,
    EXPIRED,
    LEASE_EXPIRED,
    OUT_OF_ATTEMPTS,
)

FINGERPRINT_LENGTH: Final = 16
_LONGEST_READ: Final = 1_000
_LONGEST: Final = 200

# Each of them may be followed by a name, a number or a time.
_OURS: Final = (CONSUMER_DIED, LEASE_EXPIRED, EXPIRED)
_CLASS: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*[A-Za-z](?=:|\Z)")
_VALUES: Final = re.compile(
    r"""
    (?<!\w)(?:
        "(?:\\.|[^"\\])*(?:"|\\?\Z) | '(?:\\.|[^'\\])*(?:'|\\?\Z) | `[^`]*(?:`|\Z)
      | “[^”]*(?:”|\Z) | \u2018[^\u2019]*(?:\u2019|\Z) | «[^»]*(?:»|\Z)
    )
    | \b[\w.+-]{1,100}@[\w-]+(?:\.[\w-]+)*
    | \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b
    | (?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])
    | \b[0-9a-f]{8,}\b
    | (?:(?<!\w)[-+])?\b\w*\d\w*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SEVERAL: Final = re.compile(r"\#(?:[\s,;:./+-]*\#)+")


def alike(error: str | None) -> str:
    """The first line of an error, with ``#`` for what differs from one failure to the next.

    These are quoted parts, numbers, UUIDs, hexadecimal numbers, addresses, and words with digits.
    The name of the error's class stays. The text has at most 200 characters.
    """
    line = (error or "").strip()[: 4 * _LONGEST_READ].split("\n", 1)[0].strip()
    line = line[:_LONGEST_READ].removeprefix(OUT_OF_ATTEMPTS)
    for reason in _OURS:
        if line.startswith(reason):
            return reason
    named = _CLASS.match(line)
    name = "" if named is None else named[0]
    rest = _SEVERAL.sub("#", _VALUES.sub("#", line[len(name) :]))
    return " ".join((name + rest).split())[:_LONGEST]


def fingerprint(error: str | None) -> str:
    """Sixteen hexadecimal digits that are equal for errors that are ``alike``."""
    return hashlib.sha256(alike(error).encode(errors="replace")).hexdigest()[:FINGERPRINT_LENGTH]
