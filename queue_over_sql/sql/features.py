"""Features: the facts in which engines differ, as this server has them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import UnsupportedByEngine

if TYPE_CHECKING:
    from sqlalchemy import Connection

OLDEST_SESSION: Final = 900.0
"""How many seconds a session of a server may last, for ``session_seconds``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """What an engine can do, and what it is like; the defaults are the portable ones.

    An engine's folder has what is true of all its servers. Its dialect refines that by the version
    and the settings of the server that it is connected to.
    """

    name: str = "generic"
    """The engine's name, for messages to people."""
    oldest_version: tuple[int, ...] = ()
    """Servers of earlier versions are refused."""
    too_old: str = ""
    """The error for them, with the versions ``needed`` and ``found``."""

    # -- statements
    skip_locked: bool = False
    """SELECT … FOR UPDATE SKIP LOCKED works."""
    locks_what_it_rejects: bool = False
    """It keeps the locks on rows that it read along an index, and that did not match the rest of
    the condition, until the transaction ends. Others that skip locked rows skip these."""
    reads_the_past: bool = False
    """A transaction of a caller may read what was committed when it began, while it locks the
    newest rows."""
    locks_inside: bool = False
    """A part of a statement can lock the rows that it reads, or its transaction locks all.

    It must not keep the lock of an index entry of a row that it skips, as InnoDB does.
    """
    update_returning: bool = False
    """UPDATE … RETURNING works and sees each row once."""
    delete_returning: bool = False
    """DELETE … RETURNING works."""
    insert_returning: bool = False
    """INSERT … VALUES (…), (…) RETURNING works."""
    conflict_clause: bool = False
    """INSERT … ON CONFLICT DO NOTHING works."""
    sorts_locks: bool = False
    """A SELECT … ORDER BY … FOR UPDATE locks rows in its order."""
    updates_from: bool = False
    """UPDATE can take its values from another table by a join."""
    id_step: str | None = None
    """SQL for the distance between the ids of a multi-row INSERT, in the session that runs it.

    The ids begin at the last insert id. None: they cannot be computed.
    """
    no_groups: str | None = None
    """Why queues cannot have groups here, and what to do; None: they can."""
    stage_piece: int | None = None
    """How many staged messages one INSERT moves while others wait; None: all."""
    statement_bytes: int | None = None
    """The server's limit for the size of a statement; None: none that matters."""

    # -- failures of statements
    aborts_on_error: bool = True
    """A failed statement aborts the transaction, so one that may fail needs a savepoint."""
    undoes_failed_insert: bool = True
    """A multi-row INSERT that fails leaves none of its rows."""
    undoes_on_timeout: bool = False
    """A lock timeout undoes the whole transaction."""

    # -- values
    identifier_limit: int = 63
    """The longest name, in bytes."""
    checks_json: bool = False
    """A queue's table refuses payloads that are not JSON."""
    doubtful_json: str | None = None
    """A regular expression that matches all invalid JSON that the table accepts."""
    rounds_json: bool = False
    """JSON functions return a whole number of more than 64 bits as a floating-point number."""
    counts_utf16: bool = False
    """The length of a text counts UTF-16 code units; an emoji has two."""
    nul_in_text: bool = True
    """Text columns can hold NUL characters."""
    encoding: str | None = None
    """The server's name for its encoding, if that lacks characters."""

    # -- the definition of tables
    ddl_commits: bool = True
    """DDL commits, so a killed process may leave tables without a record."""
    index_if_not_exists: bool = True
    """CREATE INDEX IF NOT EXISTS works."""
    alters_in_view: bool = False
    """A table can seem to be missing or broken for a moment while another process alters it."""
    alters_alone: bool = False
    """An ALTER beside other work can destroy the database, so an upgrade waits to be alone."""
    creation_seconds: float = 30.0
    """How long the creation of tables is repeated while the database is locked."""
    lock_seconds: int = 10
    """How long the creation and removal of tables waits for transactions that use them."""
    routines: str | None = None
    """The server's word for stored routines in the SQL API; None: it has no SQL API."""
    replaces_routines: bool = False
    """CREATE OR REPLACE works for stored routines and keeps the rights on them."""

    # -- sessions and files
    scopes_settings: bool = False
    """SET LOCAL and SET TRANSACTION end with the transaction."""
    session_seconds: float = math.inf
    """How old a session may become; a switchover can leave the old server's alive."""
    look_first: bool = False
    """An idle claim should read before it writes, because writing takes the only write lock."""
    separate_durable_sessions: bool = False
    """Publishing needs a connection with a stricter durability than claiming."""
    has_files: bool = False
    """This process itself reads and writes the files of the database, so it can lose them."""

    # -- advice
    unreachable_hint: str = (
        "check that it is running, that address and password are correct, and that it has a "
        "connection left for each thread"
    )
    """Advice for when the database cannot be reached."""
    locked_hint: str = ""
    """Further advice for when the database stays locked."""
    creation_hint: str = ""
    """What to ask when it stays locked for a creation, or for the first connection."""

    def refuse_older(self, connection: Connection) -> None:
        """Check that a server is not too old.

        Raises:
            UnsupportedByEngine: it is.
        """
        version: tuple[Any, ...] | None = connection.dialect.server_version_info
        if version is not None and version < self.oldest_version:
            needed, found = (".".join(map(str, v)) for v in (self.oldest_version, version))
            raise UnsupportedByEngine(self.too_old.format(needed=needed, found=found))
