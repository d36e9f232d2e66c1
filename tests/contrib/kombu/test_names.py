"""Names of exchanges and their topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql.contrib.kombu.names import KINDS, exchange_of, topic_name
from queue_over_sql.errors import TAKEN_ENDING


@given(st.sampled_from(KINDS), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_topic_tells_the_exchange_or_is_too_long(kind: str, exchange: str) -> None:
    """Each name has a topic that is valid, and that gives back the name unless it was cut."""
    topic = topic_name(kind, exchange)
    assert topic.isascii()
    assert not TAKEN_ENDING.search(topic)
    assert len(topic) <= 40
    assert exchange_of(topic) in {(kind, exchange), None}
    if len(exchange.encode()) <= 10:
        assert (kind, exchange) == exchange_of(topic)


def test_topics_are_readable() -> None:
    """Lower-case words stay; names that differ in anything have other topics."""
    names = {
        ("direct", "celery"): "direct_celery",
        ("fanout", "celery.pidbox"): "fanout_celery_2epidbox",
        ("direct", "a_b"): "direct_a__b",
        # A topic may not end like a queue's own tables.
        ("direct", "archive"): "direct_archiv_65",
        ("topic", "photo_pkey"): "topic_photo__pke_79",
    }
    for (kind, exchange), topic in names.items():
        assert topic == topic_name(kind, exchange)
        assert (kind, exchange) == exchange_of(topic)
    long = ["x" * 100, "x" * 101, "X" * 100, "_" * 60]
    assert len(long) == len({topic_name("topic", each) for each in long})
    for other in ("jobs", "direct", "direct_", "direct_a_2", "fanout_a_ff", "direct_celery_x12"):
        assert exchange_of(other) is None, other
