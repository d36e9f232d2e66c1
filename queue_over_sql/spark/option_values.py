"""How the texts of options are read; each reader gets the option's name for its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from queue_over_sql.durations import Duration, to_timedelta
from queue_over_sql.settings import check_choice, check_whole


def a_text(name: str, text: str) -> str:
    """Any text but an empty one.

    Raises:
        ValueError: it is empty.
    """
    if not text.strip():
        msg = f"option {name} is empty"
        raise ValueError(msg)
    return text.strip()


def a_flag(name: str, text: str) -> bool:
    """``true`` or ``false``.

    Raises:
        ValueError: it is neither.
    """
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        msg = f"option {name} must be true or false, not {text!r}"
        raise ValueError(msg)
    return found


def a_count(name: str, text: str) -> int:
    """A whole number from 1 on; ``_`` may group its digits.

    Raises:
        ValueError: it is none.
    """
    try:
        number = int(text.strip())
    except ValueError:
        msg = f"option {name} must be a whole number, not {text!r}"
        raise ValueError(msg) from None
    return check_whole(f"option {name}", number)


_BYTE_UNITS: Final = {"b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30}


def some_bytes(name: str, text: str) -> int:
    """A number of bytes, with or without a unit: ``4MB``, ``512k``, ``65536``.

    Raises:
        ValueError: it is none, or zero.
    """
    plain = text.strip().lower().replace("ib", "b")
    digits = plain.rstrip("bkmg").strip()
    unit = _BYTE_UNITS.get(plain[len(digits) :].strip() or "b")
    if not digits.isdecimal() or unit is None or int(digits) == 0:
        msg = f"option {name} must be a number of bytes such as 4MB, not {text!r}"
        raise ValueError(msg)
    return int(digits) * unit


_TIME_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def some_seconds(name: str, text: str) -> float:
    """A duration in seconds, with or without a unit: ``200ms``, ``1.5``, ``30s``, ``7d``.

    Raises:
        ValueError: it is none, or zero.
    """
    plain = text.strip().lower()
    digits = plain.rstrip("mshd").strip()
    try:
        seconds: Duration = float(digits) * _TIME_UNITS[plain[len(digits) :].strip() or "s"]
        return to_timedelta(seconds, f"option {name}").total_seconds()
    except (KeyError, ValueError):
        msg = f"option {name} must be a duration such as 200ms, 30s or 7d, not {text!r}"
        raise ValueError(msg) from None


def one_of(*choices: str) -> Callable[[str, str], str]:
    """One of some words, in any case; what it returns raises ``ValueError`` for others."""

    def read(name: str, text: str) -> str:
        word = text.strip().lower()
        check_choice(f"option {name}", word, choices)
        return word

    return read


def names(name: str, text: str) -> tuple[str, ...]:
    """Names with commas between them.

    Raises:
        ValueError: there is none.
    """
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        msg = f"option {name} names nothing"
        raise ValueError(msg)
    return found
