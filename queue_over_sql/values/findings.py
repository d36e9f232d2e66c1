"""What a check-up of a database found."""

from __future__ import annotations

import dataclasses
import enum


class Level(enum.StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a check-up.

    Attributes:
        level: its severity.
        about: what was checked.
        text: the finding.
        advice: what to do, in one sentence; empty if there is nothing to do.
    """

    level: Level
    about: str
    text: str
    advice: str = ""
