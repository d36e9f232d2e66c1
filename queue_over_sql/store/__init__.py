"""One function per SQL act, on a ``Connection``: the only caller of the dialects.

Nothing here opens, commits or rolls back; the queue opens transactions around these acts, or the
caller's own transaction is around them. Instants and durations are microseconds.
"""

from __future__ import annotations

from queue_over_sql.dialects.base import ClaimRequest, Settlement, Where
from queue_over_sql.store.administration import (
    archive_counts,
    delete_message,
    highest_priority,
    live_counts,
    purge,
    server_now,
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
from queue_over_sql.store.publishing import (
    NewMessage,
    load,
    publish,
    publish_many,
)
from queue_over_sql.store.reaping import (
    DeadClaim,
    expired_leases,
    orphaned_claims,
    prune_archive,
)
from queue_over_sql.store.settling import (
    archive_messages,
    extend,
    release,
    remove,
    removes_at_once,
    restore,
    retry,
    still_there,
)

__all__ = [
    "ClaimRequest",
    "DeadClaim",
    "NewMessage",
    "Settlement",
    "TakenFate",
    "Where",
    "anything_to_claim",
    "archive_counts",
    "archive_messages",
    "claim_messages",
    "delete_message",
    "exchange",
    "exchanges_at_once",
    "expired_leases",
    "extend",
    "highest_priority",
    "live_counts",
    "load",
    "oldest_first",
    "orphaned_claims",
    "prune_archive",
    "publish",
    "publish_many",
    "purge",
    "release",
    "remove",
    "removes_at_once",
    "restore",
    "retry",
    "server_now",
    "still_there",
    "take",
    "unclaim_all",
    "unclaim_round",
]
