"""How long and how many finished messages are kept, as values of options and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from queue_over_sql import EffectiveSettings, Outcome
from queue_over_sql.cli.values import exact_duration, parse_duration

FOREVER: Final = "forever"
UNLIMITED: Final = "unlimited"
NONE: Final = "none"
DEFAULT_KIND_TIMEOUT: Final = EffectiveSettings().kind_timeout

ArchiveTtlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archive-ttl",
        metavar="[OUTCOME=]DURATION|forever",
        show_default="forever for a new queue",
        help="How long the archive keeps them; for one outcome (done, failed, rejected, expired) "
        "as in done=1h. Repeatable; outcomes that are not named get the plain value, else forever.",
    ),
]
ArchiveLimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archive-limit",
        metavar="[OUTCOME=]N|unlimited",
        show_default="unlimited for a new queue",
        help="How many of each outcome the archive keeps, the newest; for one outcome as in "
        "done=1000. Repeatable, as --archive-ttl.",
    ),
]
DedupWindowOption = Annotated[
    str | None,
    typer.Option(
        "--dedup-window",
        metavar="DURATION|none",
        show_default="none for a new queue",
        help="How long a key stays taken after its message finished.",
    ),
]
KindTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--kind-timeout",
        metavar="DURATION",
        parser=parse_duration,
        show_default="1d for a new queue",
        help="How long a message of a kind that no server knows, or whose payload does not fit "
        "its kind, waits before it is dead.",
    ),
]


def parse_ttl(texts: Sequence[str]) -> Any:
    """What `--archive-ttl` says: seconds or None, for all outcomes or by outcome."""
    return _by_outcome(
        texts, "--archive-ttl", lambda text: None if text == FOREVER else parse_duration(text)
    )


def parse_limit(texts: Sequence[str]) -> Any:
    """What `--archive-limit` says: a number or None, for all outcomes or by outcome."""
    return _by_outcome(texts, "--archive-limit", _number)


def parse_window(text: str) -> float | None:
    """What `--dedup-window` says: seconds, or None."""
    return None if text == NONE else _read(text, "--dedup-window", parse_duration)


def _number(text: str) -> int | None:
    if text == UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor {UNLIMITED}")
    return int(text)


def _by_outcome(texts: Sequence[str], option: str, read: Callable[[str], Any]) -> Any:
    values: dict[str, Any] = {}
    for text in texts:
        outcome, separator, value = text.rpartition("=")
        if separator and outcome not in {*Outcome}:
            raise typer.BadParameter(
                f"{outcome!r} is none of {', '.join(Outcome)}", param_hint=option
            )
        if outcome in values:
            raise typer.BadParameter(f"{text!r} says it a second time", param_hint=option)
        values[outcome] = _read(value, option, read)
    plain = values.pop("", None)
    return {**dict.fromkeys(map(str, Outcome), plain), **values} if values else plain


def _read(text: str, option: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except typer.BadParameter as error:
        error.param_hint = option
        raise


def rare_settings(settings: EffectiveSettings) -> str:
    """What a queue keeps and waits for, where not as usual, e.g. ``kept 30d; keys 10m``."""
    window, patience = settings.dedup_window, settings.kind_timeout
    parts = (
        ("kept ", _in_words(settings.archive_ttl, _duration)),
        ("kept ", _in_words(settings.archive_limit, lambda number: f"newest {number:,}")),
        ("keys ", "" if window is None else _duration(window)),
        ("unknown kinds ", "" if patience == DEFAULT_KIND_TIMEOUT else _duration(patience)),
    )
    return "; ".join(what + value for what, value in parts if value)


def _in_words(value: Any, say: Callable[[Any], str]) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{outcome} {say(each)}" for outcome, each in value.items())
    return "" if value is None else say(value)


def _duration(value: timedelta) -> str:
    return exact_duration(value.total_seconds())
