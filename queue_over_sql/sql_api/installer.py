"""Installs the routines of the SQL API, which are made from templates, on one kind of server."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import ClassVar, Final

from sqlalchemy import Connection

from queue_over_sql.errors import QueueError
from queue_over_sql.queues.registry import release_text
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS, OLDEST_BESIDE_EXPIRY
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.values.limits import GROUP_LENGTH
from queue_over_sql.values.reasons import (
    CONSUMER_DIED,
    LAST_BEFORE,
    LEASE_EXPIRED,
    OUT_OF_ATTEMPTS,
)

CARRIED: Final = ", ".join(
    name for name in MESSAGE_COLUMNS if name not in {"last_attempt_at", "last_error", "expires_at"}
)
"""The columns that are copied to the archive unchanged.

Without ``last_traceback`` and ``expires_at``: an earlier release may create queues while the
routines are installed, whose tables lack these columns until this release opens them. Routines that
know that ``expires_at`` is there copy it, too.
"""

TEXTS: Final = {
    "group_length": str(GROUP_LENGTH),
    "release_of_expiry": release_text(OLDEST_BESIDE_EXPIRY),
    "died": CONSUMER_DIED,
    "expired": LEASE_EXPIRED,
    "spent": OUT_OF_ATTEMPTS,
    "before": LAST_BEFORE,
    "behind_before": str(len(LAST_BEFORE)),
}
"""The texts of what the API gives back, as the reaper writes them, and other constants."""

_MARK = "queue_over_sql sql-api"
_BETWEEN = "-----\n"
_HEAD = re.compile(
    r'CREATE (?:OR REPLACE )?(FUNCTION|PROCEDURE) (?:(?:"(?:[^"]|"")*"|\w+)\.)?'
    r"(\w+)(\(.*?\))(?: RETURNS|\n)",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Routine:
    """A function or a procedure, and the statement that creates it."""

    kind: str
    """``FUNCTION`` or ``PROCEDURE``."""
    name: str
    parameters: str
    """Including the parentheses."""
    text: str
    public: bool
    """Whether clients call it."""

    @property
    def shape(self) -> str:
        """Tells versions with different parameters or results apart."""
        return _digest(self.text.partition("LANGUAGE")[0])

    def comment(self, prefix: str) -> str:
        """The comment in the database: the routine's owner and version."""
        return f"{_MARK} {prefix} {self.shape} {_digest(self.text)}"


@dataclasses.dataclass(frozen=True)
class Installed:
    """A routine as it is in the database."""

    kind: str
    name: str
    parameters: str
    """If the engine needs them to name the routine."""
    comment: str
    """Its comment in the database; may be empty."""

    @property
    def ours(self) -> bool:
        """Whether an installation of the SQL API created it."""
        return self.comment.startswith(_MARK + " ")

    @property
    def prefix(self) -> str:
        """The table prefix that it serves."""
        return self.comment.removeprefix(_MARK).split()[0] if self.ours else ""

    @property
    def shape(self) -> str:
        return self.comment.split()[-2] if self.ours else ""


def read_template(folder: str, name: str, expand: Callable[[str], str]) -> list[Routine]:
    """The routines of a template with its tokens expanded; clients call those of ``public``."""
    file = resources.files(__package__).joinpath("templates", folder, f"{name}.sql")
    text = expand(file.read_text(encoding="utf-8"))
    return [_routine(part, public=name == "public") for part in text.split(_BETWEEN)]


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with each ``<token>`` replaced."""
    for token, value in values.items():
        text = text.replace(f"<{token}>", value)
    return text


def _routine(part: str, *, public: bool) -> Routine:
    # The text before the statement describes the template.
    text = part[part.index("CREATE ") :].strip().rstrip(";")
    head = _HEAD.match(text)
    if head is None:  # pragma: no cover - the templates are ours
        raise ValueError(text)
    return Routine(head[1], head[2], head[3], text, public)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class QueueShape:
    """The facts about a queue that its routines contain."""

    name: str
    payload: str
    columns: tuple[str, ...]
    """Including that of the group, if the queue has groups."""
    grouped: bool = False


@dataclasses.dataclass(frozen=True)
class InstallSite:
    """Where routines are installed."""

    dialect: QueueDialect
    schema: str | None
    """The schema of the tables; None for the connection's default."""
    prefix: str
    """The table prefix of the queues."""
    queues: Sequence[QueueShape]
    """The queues that the API can serve."""


class InstallForm(abc.ABC):
    """Writes, finds, replaces and grants routines on one kind of server."""

    clock: ClassVar[str]
    """The query for the server's clock in microseconds, which is the counter's first number."""

    def __init__(self, connection: Connection, site: InstallSite) -> None:
        self.connection = connection
        self.site = site

    @abc.abstractmethod
    def routines(self) -> list[Routine]:
        """All routines, in the order of their creation."""

    @abc.abstractmethod
    def installed(self, names: Sequence[str]) -> list[Installed]:
        """The routines with these names, and all others that an installation created."""

    @abc.abstractmethod
    def create(self, routine: Routine, found: Installed | None) -> None:
        """Create a routine, or replace an earlier version; its grants stay."""

    @abc.abstractmethod
    def drop(self, found: Installed) -> None:
        """Drop a routine."""

    @abc.abstractmethod
    def grant(self, routine: Routine, role: str) -> None:
        """Let a role execute a routine."""

    @abc.abstractmethod
    def counting_from(self, first: int) -> str:
        """The statement of ``counter``, with the first number."""

    @abc.abstractmethod
    def drop_counter(self) -> None:
        """Drop the counter of claims."""

    @abc.abstractmethod
    def script(self, consumer: str) -> str:
        """The installation as a script for a shell; ``consumer`` registers the SQL clients."""

    def counter(self) -> str:
        """The statement that creates the counter of claims if it is missing.

        It starts at the clock, so tokens never repeat, even if it was dropped and created again.
        """
        return self.counting_from(int(self.connection.exec_driver_sql(self.clock).scalar_one()))

    def check_allowed(self) -> None:
        """Refuse servers that do not allow routines, before anything is changed.

        Raises:
            UnsupportedByEngine: this server does not allow them.
        """
        return

    def admit(self, role: str) -> None:
        """Grant a role the use of the schema, if that needs a right of its own."""
        return

    def run(self, statement: str) -> None:
        """Run a statement unchanged, even if it has characters that a driver would replace."""
        options = {"no_parameters": True}
        self.connection.exec_driver_sql(statement, execution_options=options).close()

    def install(self, roles: Sequence[str]) -> None:
        """Install all routines; routines of the same version stay unchanged.

        Raises:
            QueueError: the names are taken; nothing was changed.
            UnsupportedByEngine: the server refuses such routines; nothing was changed.
        """
        wanted = self.routines()
        present = self.installed([routine.name for routine in wanted])
        self._check_free(present)
        found = {(routine.kind, routine.name): routine for routine in present}
        # What remains in ``found`` belongs to an earlier installation.
        pairs = [(routine, found.pop((routine.kind, routine.name), None)) for routine in wanted]
        outdated = [
            (routine, old)
            for routine, old in pairs
            if old is None or old.comment != routine.comment(self.site.prefix)
        ]
        if outdated:
            self.check_allowed()
        self.run(self.counter())
        for routine, old in outdated:
            self.create(routine, old)
        for stray in found.values():
            self.drop(stray)
        for role in roles:
            self.admit(role)
            for routine in wanted:
                if routine.public:
                    self.grant(routine, role)

    def uninstall(self) -> bool:
        """Drop the routines of this table prefix; False if there are none."""
        present = [each for each in self.installed([]) if each.prefix == self.site.prefix]
        for found in reversed(present):
            self.drop(found)
        return bool(present)

    def serves_others(self) -> bool:
        """Whether the routines here serve another table prefix."""
        return any(found.prefix != self.site.prefix for found in self.installed([]))

    def _check_free(self, present: Sequence[Installed]) -> None:
        for found in present:
            if found.ours and found.prefix != self.site.prefix:
                msg = (
                    "The SQL API of this schema already serves the table prefix "
                    f"{found.prefix!r}, and a schema can have only one. Uninstall it there, or "
                    f"keep the queues of {self.site.prefix!r} in their own schema."
                )
                raise QueueError(msg)
            if not found.ours:
                msg = (
                    f"A {found.kind.lower()} named {found.name!r} already exists and does not "
                    "belong to queue_over_sql. Nothing was changed. Rename or drop it, then "
                    "install again."
                )
                raise QueueError(msg)
