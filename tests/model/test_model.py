"""The checked model of the protocol: no run breaks a promise, and each broken rule is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.model.spin import MODELS, search

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = [pytest.mark.engines("sqlite"), pytest.mark.fetched]

SMALL: Final = {
    "claims": ("FAULTS=1", "FAULTS=1"),
    "watermark": ("", "THREADS=1"),
    "clocks": ("", ""),
    "groups": ("", ""),
    "slots": ("", ""),
    "durable": ("", "DRIVERS=1"),
}
"""The bounds of the default tier: of the search for assertions, and of that for endless runs."""

VARIANTS: Final = {"groups": ("AT_ONCE", "HAND_EDITS")}
"""Other ways in which an engine does it, or what people do, under the same promises."""

LARGE: Final = [
    ("claims", "FAULTS=2", False),
    ("watermark", "STEPS", False),
    ("watermark", "STEPS THREADS=1", True),
    ("clocks", "LAST=12", False),
    ("groups", "FAULTS=4 CONSUMERS=3", False),
    ("groups", "AT_ONCE FAULTS=3", True),
    ("groups", "HAND_EDITS AT_ONCE", True),
    ("slots", "LIMIT=2 CONSUMERS=3", True),
    ("durable", "DRIVERS=2", True),
]
"""The bounds of the full tier: model, switches, whether it is the search for endless runs."""

BROKEN: Final = {
    "claims": {
        "NO_FENCE FAULTS=1": ("assertion", "a settle without the fence"),
        "FENCE_WITHOUT_ROUND FAULTS=1": ("assertion", "a fence without the number of the claim"),
        "SAME_ROUND FAULTS=1": ("assertion", "claims of one consumer with one number"),
        "TOKEN_WITHOUT_STAMP FAULTS=1": ("assertion", "a token that names only the message"),
        "KEY_AFTER_ACK FAULTS=1": ("assertion", "a key that is kept after the ack's transaction"),
        "EFFECT_BEFORE_ACK FAULTS=1": ("assertion", "the handler's writes before the ack's"),
        "CLAIM_UNLOCKED FAULTS=1": ("assertion", "a claim of messages that are not locked"),
        "RESTORE_BLIND FAULTS=1": ("assertion", "a restore that does not look again"),
        "RESTORE_OVERDUE FAULTS=1": ("assertion", "a restore before the death is declared"),
        "DEATH_BLIND FAULTS=1": ("assertion", "a death that a heartbeat has come before"),
        "ONLY_AT_DEATH FAULTS=1": ("cycle", "claims that arrive after the death stay"),
        "NO_RECALL FAULTS=1": ("cycle", "a claim without an answer is not given back"),
        "ACK_AT_CLAIM FAULTS=1": ("cycle", "a message that is removed when it is claimed"),
    },
    "watermark": {
        "NO_SLACK": ("assertion", "a watermark without slack for late commits"),
        "WITHOUT_EDITS": ("assertion", "a watermark that ignores edits"),
        "COUNT_APART": ("assertion", "an edit that is counted in another transaction"),
        "NOTE_STALE": ("assertion", "a claim from before an edit raises the watermark"),
        "UNLOCKED": ("assertion", "watermark and count of edits change apart"),
        "FIRST_REPLACED": ("assertion", "a late first count replaces that of the watermark"),
        "NO_FULL_LOOK THREADS=1": ("cycle", "no look below the watermark"),
    },
    "clocks": {
        "CLOCK_OF_THE_APPLICATION": ("assertion", "a lease by the clock of the application"),
        "CLOCK_OF_THE_REAPER": ("assertion", "a lease that ends by the clock of the reaper"),
        "DEADLINE_AFTER_ANSWER": ("assertion", "an own deadline that counts from the answer"),
        "NO_RESTORE": ("cycle", "no look for leases that are over"),
    },
    "groups": {
        "FOLLOWER_FIRST": ("assertion", "a follower before the head that was committed late"),
        "NOT_COUNTED": ("assertion", "a group that is released before its message ends"),
        "RETRY_LETS_PASS": ("assertion", "a retry that lets the next one pass"),
        "AT_ONCE NO_SEQ": ("assertion", "a claim by a snapshot that is older than its lock"),
        "NO_WAKE": ("cycle", "an end that wakes nobody"),
        "PARK_UNLOCKED": ("cycle", "parking behind a message that is not locked"),
        "MARK_READ_BEFORE": ("cycle", "an end that reads its mark before its lock"),
        "HAND_EDITS NO_REPAIR": ("cycle", "no repair after a deletion by hand"),
    },
    "slots": {
        "NO_SECOND_LOOK": ("assertion", "a slot that is not looked at again after its lock"),
        "STORED_FLAG": ("cycle", "a slot that only its user frees"),
    },
    "durable": {
        "NO_EPOCH": ("assertion", "a driver that another one has replaced still acknowledges"),
        "CLAIMED_AGAIN": ("assertion", "a round that grows when it is read again"),
        "ACK_BEFORE_WRITE": ("assertion", "a round that is acknowledged before it is written"),
        "NO_WRITE": ("assertion", "a round that is claimed and never written"),
    },
}
"""Broken rules: the switches, what spin must find, and what it is."""


@pytest.mark.parametrize("model", SMALL)
def test_no_run_breaks_a_promise(model: str, tmp_path: Path) -> None:
    """All runs within small bounds, each order of all steps: assertions, and that work ends."""
    for variant in ("", *VARIANTS.get(model, ())):
        for liveness, bounds in enumerate(SMALL[model]):
            found = search(
                tmp_path, model, *variant.split(), *bounds.split(), liveness=bool(liveness)
            )
            assert (0, None) == (found.errors, found.kind), (variant, bounds)


@pytest.mark.full
@pytest.mark.parametrize(("model", "switches", "liveness"), LARGE)
def test_no_run_breaks_a_promise_within_larger_bounds(
    model: str, switches: str, tmp_path: Path, *, liveness: bool
) -> None:
    """More faults, processes and messages."""
    found = search(tmp_path, model, *switches.split(), liveness=liveness)
    assert (0, None) == (found.errors, found.kind)


@pytest.mark.parametrize("model", BROKEN)
def test_a_broken_rule_of_each_kind_is_noticed(model: str, tmp_path: Path) -> None:
    """So the promises of the model are not empty: one rule of each kind, for every change."""
    first = {kind: switches for switches, (kind, _) in reversed(BROKEN[model].items())}
    _notice(model, first.values(), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("model", BROKEN)
def test_each_broken_rule_is_noticed(model: str, tmp_path: Path) -> None:
    """A run breaks the promises of the model if one rule is missing, whichever it is."""
    _notice(model, BROKEN[model], tmp_path)


def _notice(model: str, broken: Iterable[str], folder: Path) -> None:
    for switches in broken:
        kind, rule = BROKEN[model][switches]
        found = search(folder, model, *switches.split(), liveness=kind == "cycle", quick=True)
        assert kind == found.kind, f"{model}: {switches}: {rule}"


def test_each_switch_of_the_models_is_tried() -> None:
    """A rule that can be broken is broken by a test."""
    models = {path.stem: path.read_text() for path in sorted(MODELS.glob("*.pml"))}
    assert sorted(SMALL) == sorted(models) == sorted(BROKEN)
    for model, text in models.items():
        words = {line.split(maxsplit=1)[1] for line in text.splitlines() if _asks(line)}
        asked = {each for words_of_line in words for each in _names(words_of_line)}
        tried = {each.split("=")[0] for switches in BROKEN[model] for each in switches.split()}
        known = tried | {*VARIANTS.get(model, ()), "STEPS"} | _bounds(text)
        assert set() == asked - known, model


def _asks(line: str) -> bool:
    return line.startswith(("#ifdef ", "#ifndef ", "#if defined", "#elif defined"))


def _names(condition: str) -> list[str]:
    return [word.split(")")[0] for word in condition.replace("defined(", "").split()]


def _bounds(text: str) -> set[str]:
    return {line.split()[1] for line in text.splitlines() if line.startswith("#define ")}
