"""Routines: the functions and procedures of the SQL API, made from templates."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Final

from queue_over_sql.schema import MESSAGE_COLUMNS

CARRIED: Final = ", ".join(
    name for name in MESSAGE_COLUMNS if name not in {"last_attempt_at", "last_error"}
)
"""The columns that a message takes into the archive as they are."""

_MARK = "queue_over_sql sql-api"
_BETWEEN = "-----\n"
_HEAD = re.compile(
    r'CREATE (?:OR REPLACE )?(FUNCTION|PROCEDURE) (?:(?:"(?:[^"]|"")*"|\w+)\.)?'
    r"(\w+)(\(.*?\))(?: RETURNS|\n)",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Routine:
    """A function or a procedure.

    Attributes:
        kind: ``FUNCTION`` or ``PROCEDURE``.
        name: without its schema.
        parameters: with the brackets.
        text: the statement that creates it.
        public: whether clients call it.
    """

    kind: str
    name: str
    parameters: str
    text: str
    public: bool

    def comment(self, prefix: str) -> str:
        """What it is marked with in the database: whose it is, and which version."""
        shape, _, _ = self.text.partition("LANGUAGE")
        return f"{_MARK} {prefix} {_digest(shape)} {_digest(self.text)}"


@dataclasses.dataclass(frozen=True)
class Installed:
    """A routine as it is in the database.

    Attributes:
        kind: ``FUNCTION`` or ``PROCEDURE``.
        name: without its schema.
        parameters: with the brackets, as far as the engine needs them to name it.
        comment: what it is marked with; empty where it is not.
    """

    kind: str
    name: str
    parameters: str
    comment: str

    @property
    def ours(self) -> bool:
        """Whether an installation of ours has made it."""
        return self.comment.startswith(_MARK + " ")

    @property
    def prefix(self) -> str:
        """The table prefix that it serves."""
        return self.comment.removeprefix(_MARK).split()[0] if self.ours else ""

    @property
    def shape(self) -> str:
        """What tells versions of other parameters or results apart."""
        return self.comment.split()[-2] if self.ours else ""


def read_template(folder: str, name: str, expand: Callable[[str], str]) -> list[Routine]:
    """The routines of a template.

    Args:
        folder: of the templates of a kind of server.
        name: of the file; the routines of ``public`` are for clients.
        expand: replaces the tokens of a template.
    """
    file = resources.files(__package__).joinpath("templates", folder, f"{name}.sql")
    text = expand(file.read_text(encoding="utf-8"))
    return [_routine(part, public=name == "public") for part in text.split(_BETWEEN)]


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with each ``<token>`` replaced."""
    for token, value in values.items():
        text = text.replace(f"<{token}>", value)
    return text


def strays(installed: Sequence[Installed], wanted: Sequence[Routine]) -> list[Installed]:
    """What an earlier installation has left that is wanted no more."""
    names = {(routine.kind, routine.name) for routine in wanted}
    return [found for found in installed if (found.kind, found.name) not in names]


def _routine(part: str, *, public: bool) -> Routine:
    # What stands before the statement is about the template.
    text = part[part.index("CREATE ") :].strip().rstrip(";")
    head = _HEAD.match(text)
    if head is None:  # pragma: no cover - the templates are ours
        raise ValueError(text)
    return Routine(head[1], head[2], head[3], text, public)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
