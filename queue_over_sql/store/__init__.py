"""One function per SQL act, on a ``Connection``: who asks the dialects for statements.

Nothing here opens, commits or rolls back; the queue opens transactions around these acts, or the
caller's own transaction is around them. Instants and durations are microseconds.
"""

from __future__ import annotations

from queue_over_sql.dialects.requests import ANY_EDITS, ClaimRequest, Settlement, Where
from queue_over_sql.store.acts import Act
from queue_over_sql.store.admin import counts, delete_message, highest_priority, purge, server_now
from queue_over_sql.store.archive import Span, archive_span, remove_exported
from queue_over_sql.store.claim import (
    Disposition,
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
from queue_over_sql.store.kinds import dead_letter_unknown, declare_kinds
from queue_over_sql.store.publish import (
    NewMessage,
    PlainMessages,
    PlainPayloads,
    load,
    publish,
    publish_many,
    publishing,
)
from queue_over_sql.store.recovery import (
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
    extent_of,
    has_status,
    id_after,
    last_id,
    list_messages,
    move_to_front,
    probe_ids,
    remove_messages,
    requeue,
)
from queue_over_sql.store.settle import (
    Aside,
    archive_messages,
    extend,
    finish,
    give_back,
    hold,
    release,
    remove,
    restore,
    retry,
    set_aside,
    still_there,
    updates_at_once,
)

__all__ = [
    "ANY_EDITS",
    "Act",
    "Aside",
    "Chosen",
    "ClaimRequest",
    "ConsumerInfo",
    "DeadClaim",
    "Disposition",
    "Edited",
    "NewMessage",
    "PlainMessages",
    "PlainPayloads",
    "Settlement",
    "Span",
    "Where",
    "anything_to_claim",
    "archive_messages",
    "archive_span",
    "claim_messages",
    "count_messages",
    "counts",
    "dead_letter_unknown",
    "declare_kinds",
    "delete_message",
    "edit_messages",
    "exchange",
    "exchanges_at_once",
    "expired_leases",
    "extend",
    "extent_of",
    "finish",
    "give_back",
    "has_status",
    "highest_priority",
    "hold",
    "id_after",
    "last_id",
    "last_to_prune",
    "list_messages",
    "load",
    "move_to_front",
    "oldest_first",
    "orphaned_claims",
    "probe_ids",
    "prune_archive",
    "prune_keys",
    "publish",
    "publish_many",
    "publishing",
    "purge",
    "release",
    "remove",
    "remove_exported",
    "remove_messages",
    "requeue",
    "restore",
    "retry",
    "server_now",
    "set_aside",
    "still_there",
    "take",
    "unclaim_all",
    "unclaim_round",
    "updates_at_once",
]
