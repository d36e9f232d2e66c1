"""The account itself: it must detect what the other tests hope never to find."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tests.chaos.account import Account
from tests.chaos.journal import Entry

DELIVERED = Entry("delivered", 1.0, "a", token="t", id=1, consumer="A", round=1, batch=1)


def written(folder: Path, *entries: Entry) -> Account:
    """The account of these entries, each in its writer's journal."""
    for entry in entries:
        with (folder / f"{entry.writer}.jsonl").open("a") as journal:
            journal.write(json.dumps(dataclasses.asdict(entry)) + "\n")
    return Account(folder)


def by(entry: Entry, act: str, at: float, verb: str = "ack") -> Entry:
    """A later fact about the same delivery."""
    return dataclasses.replace(entry, act=act, at=at, verb=verb)


def to_another(at: float) -> Entry:
    """The delivery of the same message to consumer B."""
    return dataclasses.replace(DELIVERED, at=at, writer="b", consumer="B")


def test_a_delivery_before_the_ack_is_a_double_hold(tmp_path: Path) -> None:
    """B got the message while A, whose ack was accepted later, still held it."""
    late = to_another(at=2.0)
    account = written(
        tmp_path, DELIVERED, late, by(DELIVERED, "settling", 3.0), by(DELIVERED, "settled", 4.0)
    )
    assert [(DELIVERED, late)] == account.double_holds()


def test_a_delivery_after_a_release_is_none(tmp_path: Path) -> None:
    """B got the message after A had given it back."""
    account = written(
        tmp_path,
        DELIVERED,
        by(DELIVERED, "settling", 2.0, "release"),
        to_another(at=2.5),
        by(DELIVERED, "settled", 3.0, "release"),
    )
    assert [] == account.double_holds()


def test_a_refused_ack_proves_no_hold(tmp_path: Path) -> None:
    """A's claim was lost some time before its refused ack: B's delivery was right."""
    account = written(
        tmp_path,
        DELIVERED,
        to_another(at=2.0),
        by(DELIVERED, "settling", 3.0),
        by(DELIVERED, "lost", 4.0),
    )
    assert [] == account.double_holds()


def test_a_consumer_holds_until_its_last_sign_of_life(tmp_path: Path) -> None:
    """A was alive at 5 and had settled nothing, so that B's delivery at 4 was one too many."""
    other = dataclasses.replace(DELIVERED, at=5.0, id=2, token="u")
    late = to_another(at=4.0)
    assert [(DELIVERED, late)] == written(tmp_path, DELIVERED, late, other).double_holds()


def test_a_killed_consumer_holds_nothing_afterwards(tmp_path: Path) -> None:
    """A was last seen at 1: B's delivery at 4 may be a rescue."""
    assert [] == written(tmp_path, DELIVERED, to_another(at=4.0)).double_holds()


def test_a_round_used_twice_is_found(tmp_path: Path) -> None:
    """Two batches with one stamp are what a counter that is not atomic leaves behind."""
    account = written(tmp_path, DELIVERED, dataclasses.replace(DELIVERED, id=2, batch=2))
    assert [("A", 1)] == account.rounds_shared_by_batches()


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    """What was not written whole did not happen."""
    written(tmp_path, DELIVERED)
    with (tmp_path / "a.jsonl").open("a") as journal:
        journal.write('{"act": "settl')
    assert ["t"] == Account(tmp_path).tokens("delivered")
