"""Why a message failed: its reason and traceback, as they are stored."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Final

from queue_over_sql.settling.operations import LONGEST_ERROR
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from types import TracebackType


# HandlerStopped is a CancelledError.
_INTERRUPTIONS: Final = (KeyboardInterrupt, SystemExit, asyncio.CancelledError)
_CALLERS: Final = ("queue_over_sql", "sqlalchemy", "contextlib")


def reason_of(error: str | BaseException | None, argument: str = "error") -> str | None:
    """The text of a failure, made storable on every engine and limited in length."""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {_text_of(error)}"
    elif error is not None and not isinstance(error, str):
        msg = f"{argument} must be a str or an exception, not {type(error).__name__}"
        raise TypeError(msg)
    text = printable(error)
    return None if text is None else text[:LONGEST_ERROR]


def traceback_of(error: BaseException) -> str | None:
    """The traceback to store, of which only the end if it is long; None if there is none."""
    if error.__traceback__ is None:
        return None
    try:
        text = "".join(traceback.format_exception(type(error), error, users_frames(error)))
    except Exception:  # noqa: BLE001 - types raise what they like
        return None
    return printable(text[-LONGEST_ERROR:])


def instead_of(error: BaseException) -> BaseException | None:
    """What to raise instead of an exception at which nobody can look; None for any other.

    Its class, or that of one behind it, raises when it is asked for an attribute. Python itself
    cannot print such a one, so it would end the thread that logs it. An interruption stays what it
    is, without what is behind it; so does one that comes while this looks.
    """
    met = _met_at(error)
    if met is None:
        return None
    interrupts = issubclass(type(error), _INTERRUPTIONS)
    if interrupts:
        for behind in ("__cause__", "__context__"):
            BaseException.__dict__[behind].__set__(error, None)
    if _met_at(error) is None:
        if interrupts:
            return None
        if issubclass(type(met), _INTERRUPTIONS):
            # The class does not raise it each time, so it came from elsewhere.
            raise met
    frames = BaseException.__dict__["__traceback__"].__get__(error)
    text = f"the handler raised {type(error).__name__}, which cannot be looked at"
    return RuntimeError(text).with_traceback(frames)


def _met_at(error: BaseException) -> BaseException | None:
    """What looking at an exception raises, if anything."""
    try:
        traceback.format_exception(error)
        # This asks for its class.
        isinstance(error, str)
    except BaseException as met:  # noqa: BLE001 - types raise what they like
        return met
    return None


def users_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of the user's code on; all of it if there is none."""
    found = error.__traceback__
    while found is not None:
        if str(found.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _CALLERS:
            return found
        found = found.tb_next
    return error.__traceback__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the text of a user's exception is the user's code
        return "(its text could not be created)"
