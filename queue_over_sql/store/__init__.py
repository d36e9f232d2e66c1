"""One function per SQL act, on a ``Connection``. The dialects provide the statements.

These functions do not open, commit or roll back transactions. The queue opens a transaction around
an act, or the caller's own transaction is around it. Times and durations are microseconds.
"""

from __future__ import annotations

from queue_over_sql.dialects.requests import ANY_EDITS as ANY_EDITS
from queue_over_sql.dialects.requests import ClaimRequest as ClaimRequest
from queue_over_sql.dialects.requests import Settlement as Settlement
from queue_over_sql.dialects.requests import Where as Where
from queue_over_sql.store.acts import Act as Act
from queue_over_sql.store.admin import Place as Place
from queue_over_sql.store.admin import Span as Span
from queue_over_sql.store.admin import archive_span as archive_span
from queue_over_sql.store.admin import counts as counts
from queue_over_sql.store.admin import delete_message as delete_message
from queue_over_sql.store.admin import highest_priority as highest_priority
from queue_over_sql.store.admin import last_to_prune as last_to_prune
from queue_over_sql.store.admin import prune_archive as prune_archive
from queue_over_sql.store.admin import purge as purge
from queue_over_sql.store.admin import remove_exported as remove_exported
from queue_over_sql.store.admin import server_now as server_now
from queue_over_sql.store.admin import subtractable as subtractable
from queue_over_sql.store.claim import DecodeTaken as DecodeTaken
from queue_over_sql.store.claim import Disposition as Disposition
from queue_over_sql.store.claim import anything_to_claim as anything_to_claim
from queue_over_sql.store.claim import cancel_message as cancel_message
from queue_over_sql.store.claim import claim_messages as claim_messages
from queue_over_sql.store.claim import exchange as exchange
from queue_over_sql.store.claim import exchanges_at_once as exchanges_at_once
from queue_over_sql.store.claim import oldest_first as oldest_first
from queue_over_sql.store.claim import take as take
from queue_over_sql.store.claim import unclaim_all as unclaim_all
from queue_over_sql.store.claim import unclaim_round as unclaim_round
from queue_over_sql.store.consumers import ConsumerInfo as ConsumerInfo
from queue_over_sql.store.keys import prune_keys as prune_keys
from queue_over_sql.store.publish import NewMessage as NewMessage
from queue_over_sql.store.publish import PlainMessages as PlainMessages
from queue_over_sql.store.publish import PlainPayloads as PlainPayloads
from queue_over_sql.store.publish import load as load
from queue_over_sql.store.publish import publish as publish
from queue_over_sql.store.publish import publish_many as publish_many
from queue_over_sql.store.publish import publishing as publishing
from queue_over_sql.store.recovery import DeadClaim as DeadClaim
from queue_over_sql.store.recovery import Holder as Holder
from queue_over_sql.store.recovery import dead_letter_unknown as dead_letter_unknown
from queue_over_sql.store.recovery import declare_kinds as declare_kinds
from queue_over_sql.store.recovery import expired_leases as expired_leases
from queue_over_sql.store.recovery import holders as holders
from queue_over_sql.store.recovery import orphaned_claims as orphaned_claims
from queue_over_sql.store.selection import Chosen as Chosen
from queue_over_sql.store.selection import EditResult as EditResult
from queue_over_sql.store.selection import Page as Page
from queue_over_sql.store.selection import count_messages as count_messages
from queue_over_sql.store.selection import edit_messages as edit_messages
from queue_over_sql.store.selection import extent_of as extent_of
from queue_over_sql.store.selection import has_status as has_status
from queue_over_sql.store.selection import last_id as last_id
from queue_over_sql.store.selection import list_columns as list_columns
from queue_over_sql.store.selection import list_ids as list_ids
from queue_over_sql.store.selection import list_messages as list_messages
from queue_over_sql.store.selection import move_to_front as move_to_front
from queue_over_sql.store.selection import probe_ids as probe_ids
from queue_over_sql.store.selection import remove_messages as remove_messages
from queue_over_sql.store.selection import requeue as requeue
from queue_over_sql.store.settle import LONGEST_ERROR as LONGEST_ERROR
from queue_over_sql.store.settle import Aside as Aside
from queue_over_sql.store.settle import archive_messages as archive_messages
from queue_over_sql.store.settle import deleted as deleted
from queue_over_sql.store.settle import each as each
from queue_over_sql.store.settle import extend as extend
from queue_over_sql.store.settle import finish as finish
from queue_over_sql.store.settle import finish_apart as finish_apart
from queue_over_sql.store.settle import give_back as give_back
from queue_over_sql.store.settle import hold as hold
from queue_over_sql.store.settle import keep_traceback as keep_traceback
from queue_over_sql.store.settle import release as release
from queue_over_sql.store.settle import remove as remove
from queue_over_sql.store.settle import restore as restore
from queue_over_sql.store.settle import retry as retry
from queue_over_sql.store.settle import set_aside as set_aside
from queue_over_sql.store.settle import stamped as stamped
from queue_over_sql.store.settle import still_there as still_there
from queue_over_sql.store.settle import updates_at_once as updates_at_once
