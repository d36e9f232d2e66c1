"""Offsets of streams: their form in Spark's checkpoint, and refused checkpoints."""

from __future__ import annotations

import json

import pytest

from queue_over_sql.spark.stream.offsets import Offset, read_offset

WRITTEN: list[tuple[Offset, dict[str, object]]] = [
    (Offset({"": 0}), {"round": 0}),
    (Offset({"": 7}, {"": 5}), {"round": 7, "after": 5}),
    (Offset({"b": 2, "a": 1}), {"rounds": {"a": 1, "b": 2}}),
    (Offset({"a": 1}, {"a": 0}), {"rounds": {"a": 1}, "after": {"a": 0}}),
    (Offset({"": 7}, {"": 5}, {"": 17}), {"round": 7, "after": 5, "registered": 17}),
    (
        Offset({"a": 1}, {}, {"b": 18, "a": 17}),
        {"rounds": {"a": 1}, "registered": {"a": 17, "b": 18}},
    ),
]


def test_an_offset_comes_back_as_it_was_written() -> None:
    """Plain JSON with its keys in one order, so that Spark takes equal offsets for equal."""
    for offset, written in WRITTEN:
        assert json.dumps(written) == json.dumps(offset.written())
        labels = [*offset.rounds, *offset.registered]
        assert offset == read_offset(json.loads(json.dumps(written)), labels)


def test_a_database_may_join() -> None:
    """What the checkpoint does not know of has no round yet."""
    found = read_offset({"rounds": {"a": 3}, "after": {"a": 1}}, ["a", "b"])
    assert Offset({"a": 3}, {"a": 1}) == found


def test_a_database_may_leave_if_the_user_says_so() -> None:
    """It would be lost in silence otherwise."""
    written = {"rounds": {"a": 3, "b": 4}}
    with pytest.raises(ValueError, match=r"other databases: a, b; this query reads a\."):
        read_offset(written, ["a"])
    assert Offset({"a": 3}) == read_offset(written, ["a"], strict=False)


def test_one_database_is_not_several() -> None:
    """Nothing says which of them the single one was."""
    with pytest.raises(ValueError, match="other databases"):
        read_offset({"round": 3}, ["a", "b"])
    with pytest.raises(ValueError, match="other databases"):
        read_offset({"rounds": {"a": 3}}, [""])


def test_a_checkpoint_that_holds_anything_is_told() -> None:
    """It is a file, and may have been changed by anybody."""
    for written in (
        {"round": "os:system"},
        {"round": 1e400},
        {"round": [1]},
        {"round": 1, "after": {"a": 1}},
        {"round": 1, "registered": "x"},
    ):
        with pytest.raises(ValueError, match="The checkpoint contains"):
            read_offset(written, [""])
    with pytest.raises(ValueError, match="The checkpoint contains"):
        read_offset({"rounds": {"a": 1}, "after": 7}, ["a"])


def test_rounds_of_another_registration_are_another_place() -> None:
    """Where nobody noted the registration, the round alone says where it is."""
    here = Offset({"": 7}, {"": 7}, {"": 17})
    assert here.stands_at(here)
    assert here.stands_at(Offset({"": 7}, {"": 5}))
    assert not here.stands_at(Offset({"": 6}, {"": 5}, {"": 17}))
    assert not here.stands_at(Offset({"": 7}, {"": 5}, {"": 16}))
