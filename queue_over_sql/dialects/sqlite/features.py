"""What all SQLite libraries can do."""

from __future__ import annotations

from typing import Final

from queue_over_sql.sql.features import Features

FEATURES: Final = Features(
    name="sqlite",
    # The first version with RETURNING.
    oldest_version=(3, 35),
    too_old="SQLite {needed} or newer is required; this Python has {found}.",
    # It has no locks of rows: a transaction that writes has the whole file.
    locks_inside=True,
    update_returning=True,
    delete_returning=True,
    insert_returning=True,
    conflict_clause=True,
    updates_from=True,
    aborts_on_error=False,
    ddl_commits=False,
    # The lock may be that of the caller's own transaction, which waits for the creation.
    creation_seconds=10.0,
    look_first=True,
    separate_durable_sessions=True,
    has_files=True,
    unreachable_hint="check that its folder exists and that this process may write there",
    locked_hint="by your own transaction? then pass its connection=",
    creation_hint=(
        "by your own transaction? then call create_queue() or adopt_queue() before it begins, for "
        "example when the program starts"
    ),
)
