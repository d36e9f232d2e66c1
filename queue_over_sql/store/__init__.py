"""One function per SQL act, on a ``Connection``: who asks the dialects for statements.

Nothing here opens, commits or rolls back; the queue opens transactions around these acts, or the
caller's own transaction is around them. Instants and durations are microseconds.
"""

from __future__ import annotations

from queue_over_sql.dialects.requests import ANY_EDITS, ClaimRequest, Settlement, Where
from queue_over_sql.dialects.statements.selection import due_first, has_status
from queue_over_sql.store.administration import (
    archive_counts,
    delete_message,
    highest_priority,
    live_counts,
    purge,
    server_now,
)
from queue_over_sql.store.adoption import (
    add_columns,
    count_new,
    drop_columns,
    enqueue,
    last_of_next,
    publish_rows,
    reflect,
)
from queue_over_sql.store.claiming import (
    TakenFate,
    anything_to_claim,
    claim_messages,
    exchange,
    exchanges_at_once,
    oldest_first,
    take,
    unclaim_all,
    unclaim_round,
)
from queue_over_sql.store.consumers import ConsumerInfo
from queue_over_sql.store.keys import prune_keys
from queue_over_sql.store.kinds import bury_unknown, declare_kinds
from queue_over_sql.store.publishing import (
    NewMessage,
    load,
    publish,
    publish_many,
)
from queue_over_sql.store.reaping import (
    DeadClaim,
    expired_leases,
    last_to_prune,
    orphaned_claims,
    prune_archive,
)
from queue_over_sql.store.selection import (
    Chosen,
    Edited,
    count_messages,
    edit_messages,
    id_after,
    last_id,
    list_messages,
    move_to_front,
    remove_messages,
    requeue,
)
from queue_over_sql.store.settling import (
    Aside,
    archive_messages,
    extend,
    release,
    remove,
    removes_at_once,
    restore,
    retry,
    set_aside,
    still_there,
)

__all__ = [
    "ANY_EDITS",
    "Aside",
    "Chosen",
    "ClaimRequest",
    "ConsumerInfo",
    "DeadClaim",
    "Edited",
    "NewMessage",
    "Settlement",
    "TakenFate",
    "Where",
    "add_columns",
    "anything_to_claim",
    "archive_counts",
    "archive_messages",
    "bury_unknown",
    "claim_messages",
    "count_messages",
    "count_new",
    "declare_kinds",
    "delete_message",
    "drop_columns",
    "due_first",
    "edit_messages",
    "enqueue",
    "exchange",
    "exchanges_at_once",
    "expired_leases",
    "extend",
    "has_status",
    "highest_priority",
    "id_after",
    "last_id",
    "last_of_next",
    "last_to_prune",
    "list_messages",
    "live_counts",
    "load",
    "move_to_front",
    "oldest_first",
    "orphaned_claims",
    "prune_archive",
    "prune_keys",
    "publish",
    "publish_many",
    "publish_rows",
    "purge",
    "reflect",
    "release",
    "remove",
    "remove_messages",
    "removes_at_once",
    "requeue",
    "restore",
    "retry",
    "server_now",
    "set_aside",
    "still_there",
    "take",
    "unclaim_all",
    "unclaim_round",
]
