"""Texts that every database can store, and that show no password."""

from __future__ import annotations

import re
from typing import Any, Final

_PASSWORD_IN_URL: Final = re.compile(
    r"(?P<before>\w[\w+]*://[^:/\s]*:)(?P<password>(?:(?!://)\S)+)(?=@)"
)
_PASSWORD_IN_QUERY: Final = re.compile(
    r"(?P<before>\b(?:password|passwd|pwd)=)(?P<password>[^&;\s'\"]+)", re.IGNORECASE
)


def printable(text: str | None) -> str | None:
    """Make a text storable on every engine, such as the reason of a failure.

    NUL characters, lone surrogates, and bytes that were read with "surrogateescape", are escaped,
    so that no error message can prevent a message from being settled.
    """
    if text is None:
        return None
    try:
        shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()
    return shown.replace("\0", "\\x00")


def is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates, which bytes that are no UTF-8 were read as."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(value: Any) -> Any:
    """A text or number without its subclass.

    For example, drivers store an enum member as its name.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def is_storable(text: object) -> bool:
    """Whether every database can store the text: no NUL, no lone surrogates."""
    return isinstance(text, str) and printable(text) == text


def hide_passwords(text: str) -> str:
    """A text for people, with all passwords in URLs replaced by ``***``."""
    return _PASSWORD_IN_QUERY.sub(r"\g<before>***", _PASSWORD_IN_URL.sub(r"\g<before>***", text))
