"""Options of streams."""

from __future__ import annotations

import pytest

from queue_over_sql.spark.options import StreamOptions
from tests.refusals import refused

BASE = {"url": "sqlite:///x.db", "queue": "jobs", "consumerid": "reports"}


def test_what_holds_without_options() -> None:
    """Executors claim where they can, and the claims are kept for a week."""
    options = StreamOptions.parse(BASE)
    assert "auto" == options.claim_mode
    assert 25_000 == options.messages_per_partition
    assert 500_000 == options.max_messages_per_trigger
    assert 0.2 == options.poll_interval
    assert 604_800.0 == options.consumer_timeout
    assert options.fail_on_data_loss
    assert options.ending is None


def test_options_are_read_in_any_case_and_unit() -> None:
    """As Spark hands them over: lower-case names, texts."""
    given = {
        "maxmessagespertrigger": "100_000",
        "claimmode": "DRIVER",
        "pollinterval": "50ms",
        "onack": "Archive",
        "consumertimeout": "never",
        "failondataloss": "false",
    }
    options = StreamOptions.parse(BASE | given)
    assert 100_000 == options.max_messages_per_trigger
    assert "driver" == options.claim_mode
    assert 0.05 == options.poll_interval
    assert "archive" == options.ending
    assert options.consumer_timeout is None
    assert not options.fail_on_data_loss


def test_the_words_of_kafkas_connector_mean_the_same() -> None:
    """A job written for Kafka needs few changes."""
    given = {"maxoffsetspertrigger": "10", "maxrecordsperpartition": "5"}
    options = StreamOptions.parse(BASE | given)
    assert 10 == options.max_messages_per_trigger
    assert 5 == options.messages_per_partition


WRONG: list[tuple[dict[str, str], str]] = [
    ({"consumerid": ""}, "option consumerId"),
    ({"consumerid": "a b"}, "option consumerId must be 1 to 36"),
    ({"consumerid": "x" * 37}, "option consumerId must be 1 to 36"),
    ({"maxmessagespertriger": "1"}, "did you mean maxMessagesPerTrigger"),
    ({"claimmode": "worker"}, "option claimMode"),
    ({"pollinterval": "soon"}, "option pollInterval"),
]


def test_a_wrong_option_is_named() -> None:
    """With what to write instead."""
    for options, said in WRONG:
        with refused(options, ValueError, match=said):
            StreamOptions.parse(BASE | options)


def test_a_stream_without_a_name_is_refused() -> None:
    """It could not go on after a restart."""
    with pytest.raises(ValueError, match="option consumerId is missing"):
        StreamOptions.parse({name: BASE[name] for name in ("url", "queue")})
