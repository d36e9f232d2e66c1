"""Checks of arguments, which name the argument in their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queue_over_sql.errors import shown
from queue_over_sql.values.limits import LARGEST
from queue_over_sql.values.texts import is_storable, plain


def check_whole(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Check an integer between ``least`` and ``most``, by default the range of a BIGINT.

    Raises:
        TypeError, ValueError: it is not such a number; the message names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be a whole number, not {type(value).__name__}"
        raise TypeError(msg)
    if not least <= value <= most:
        allowed = f"{least} or more" if value < least else f"at most {most:,}"
        msg = f"{name} must be {allowed}, not {shown(int(value))}"
        raise ValueError(msg)
    return int(value)


def check_id(name: str, value: Any) -> int:
    """Check the id of a message, which may be negative: it is, in some adopted tables.

    Raises:
        TypeError, ValueError: it is not a whole number of a BIGINT; the message names the argument.
    """
    return check_whole(name, value, -LARGEST - 1)


def check_flag(name: str, value: Any) -> bool:
    """Raise TypeError unless the value is True or False; other truth values may be mistakes."""
    if not isinstance(value, bool):
        msg = f"{name} must be True or False, not {shown(value)}"
        raise TypeError(msg)
    return value


def check_function(name: str, value: Any) -> None:
    """Raise TypeError unless the value is callable or None."""
    if value is not None and not callable(value):
        msg = f"{name} must be a function, not {shown(value)}"
        raise TypeError(msg)


def check_name(value: Any) -> None:
    """Raise TypeError unless the name is text, as an object that has this name is not."""
    if not isinstance(value, str):
        msg = f"name must be a str, not {type(value).__name__}"
        raise TypeError(msg)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ValueError, which lists the choices, unless the value is one of them."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        msg = f"{name} must be one of {listed}, not {shown(value)}"
        raise ValueError(msg)


def check_keyed(on_conflict: str | None, key: str | None) -> None:
    """Raise ValueError if it is said what to do about a taken key, and there is no key."""
    if key is None and on_conflict in {"skip", "replace"}:
        msg = (
            f"on_conflict={on_conflict!r} is for a key that is taken, but this message has no key: "
            "pass a key, or leave out on_conflict"
        )
        raise ValueError(msg)


def check_text(argument: str, value: Any, limit: int, least: int = 1) -> str | None:
    """Check an optional short text; TypeError or ValueError names the argument."""
    if value is None:
        return None
    if not isinstance(value, str):
        msg = f"{argument} must be a str, not {type(value).__name__}"
        raise TypeError(msg)
    text: str = plain(value)
    if not least <= len(text) <= limit or not is_storable(text):
        allowed = f"{least} to {limit} characters of text without NUL"
        msg = f"{argument} must be {allowed}, not {text[:50]!r}"
        raise ValueError(msg)
    return text
