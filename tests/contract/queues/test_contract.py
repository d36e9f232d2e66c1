"""The contract suite for authors of engines, on all our engines."""

from __future__ import annotations

from typing import ClassVar

import pytest

from queue_over_sql.testing.contract import QueueContract


@pytest.mark.driver_decides
class TestQueueContract(QueueContract):
    """The cases of the package."""

    only_threads: ClassVar = {
        "test_a_delayed_message_comes_when_due",
        "test_a_delayed_message_is_not_due_yet",
        "test_a_held_message_is_not_delivered",
        "test_a_message_is_settled_once",
        "test_a_mixed_batch_settles_only_the_own",
        "test_a_nack_brings_the_message_back_later",
        "test_a_pause_stops_delivery_everywhere",
        "test_a_released_message_returns_to_the_head_uncounted",
        "test_a_retried_message_goes_behind_the_waiting_ones",
        "test_a_service_cannot_settle_the_message_of_another",
        "test_delete_makes_the_holder_lose",
        "test_exchange_with_a_lost_claim_claims_nothing",
        "test_extend_counts_from_now",
        "test_late_and_back_dated_messages_are_found",
        "test_order_is_by_due_time_before_id",
        "test_rounds_rise_with_every_claim",
        "test_the_closest_lease_wins",
        "test_urgent_messages_come_first",
        "test_waiting_ends_when_a_message_comes",
        "test_where_chooses_among_the_ready",
    }
    """They send the statements of the other cases, and say nothing about the asynchronous face."""
