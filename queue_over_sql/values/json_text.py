"""JSON as a person or another program wrote it: read exactly, or refused."""

from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from typing import Any, Final

from queue_over_sql.errors import PayloadInvalid


def check_json_text(text: str, what: str) -> None:
    """Raise PayloadInvalid unless ``encode_json`` could have written this text."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        msg = f"The {what} is nested too deeply for JSON."
        raise PayloadInvalid(msg) from error
    except ValueError as error:
        msg = f"The {what} is not valid JSON: {error}; it begins with {text[:60]!r}."
        raise PayloadInvalid(msg) from error


def _refuse_constant(name: str) -> None:
    msg = f"{name} is not a JSON value"
    raise ValueError(msg)


class InexactJson(ValueError):
    """JSON that Python would read as something else: a key twice, or a number that is rounded."""


def read_exactly(text: str | bytes) -> Any:
    """Read JSON as it is written, or refuse it.

    Raises:
        InexactJson: an object has a key twice, or a number has more digits than a float holds.
        ValueError, RecursionError: it is not JSON, or nested too deeply.
    """
    return _EXACT.decode(text if isinstance(text, str) else text.decode())


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        msg = f"the key {twice!r} occurs twice in an object, and only one value would be kept"
        raise InexactJson(msg)
    return found


def _float_of(text: str) -> float:
    number = float(text)
    # A float is written with up to 17 digits, so these say nothing more than it does.
    if len(text) > _DIGITS_OF_FLOAT or math.isinf(number) or abs(number) < sys.float_info.min:
        mantissa = text.lower().partition("e")[0]
        digits = "".join(filter(str.isdigit, mantissa)).strip("0")
        # Not as a Decimal: it has no number with an exponent of seven digits.
        changed = math.isinf(number) or (bool(digits) and not number)
        if number and abs(number) < sys.float_info.min:
            # The smallest ones have fewer digits: 1.2e-323 would become 9.9e-324.
            changed = Decimal(text) != Decimal(f"{number:.{len(digits) - 1}e}")
        elif not changed and len(digits) > _DIGITS_OF_FLOAT:
            changed = Decimal(text) != Decimal(repr(number))
        if changed:
            msg = f"the number {shortened(text)} would become {number!r}; write it as a string"
            raise InexactJson(msg)
    return number


def shortened(text: str) -> str:
    """A text for messages: its beginning, if it is long."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


_DIGITS_OF_FLOAT: Final = 17
_LONGEST_SHOWN: Final = 60
_EXACT: Final = json.JSONDecoder(
    object_pairs_hook=_object_of, parse_float=_float_of, parse_constant=_refuse_constant
)


def json_or_text(text: str) -> Any:
    """Read a value that a person typed: as JSON if it is valid JSON, else as the text itself.

    Raises:
        InexactJson: it is JSON that would change.
    """
    try:
        return read_exactly(text)
    except InexactJson:
        raise
    except (ValueError, RecursionError):
        return text
