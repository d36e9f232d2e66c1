"""The checker finds what breaks a promise, and nothing else: histories written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.interleavings.acts import (
    FAILED,
    Act,
    Advance,
    Claim,
    Cut,
    Edit,
    Exchange,
    Group,
    Observe,
    Publish,
    Requeue,
    Restore,
    Row,
    Settle,
    Take,
    Transaction,
    World,
)
from tests.interleavings.checker import Checker
from tests.interleavings.stepping import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

# A client, what it does, what it is told, and the steps from the first to the last of it.
History = list[tuple[str, Act, Any, int, int]]

ack, extend = Settle("ack"), Settle("extend")
GONE: Final[tuple[Any, ...]] = ()
TOLD: Final = (("1", 1),)


def _is_explained(
    history: History,
    *,
    start: Sequence[str] = ("1", "2"),
    clock: int = 0,
    seconds: Sequence[int] = (),
    **rules: Any,
) -> bool:
    everything = sorted({*start, "3"})
    world = World(**rules)
    world.ids = {label: int(label) for label in everything}
    world.places = {label: (int(label), int(label)) for label in everything}
    seconds = seconds or [90 * (0 < clock <= began) for *_, began, _ in history]
    moments = [(each * 1_000_000, each * 1_000_000) for each in seconds]
    calls = [
        Call(number, client, act, began, ended, moments[number], result)
        for number, (client, act, result, began, ended) in enumerate(history)
    ]
    return Checker(calls, world, start).explained()


def _rows(**rows: tuple[str, int, int]) -> tuple[tuple[str, Row], ...]:
    return tuple((label.strip("_"), Row(*row)) for label, row in rows.items())


def test_a_history_that_keeps_the_promises_is_explained() -> None:
    """Also one whose calls have effect in another order than that in which they began."""
    kept: list[History] = [
        [("a", Claim(), (("1", 1),), 1, 1), ("a", ack, (("1", 0, True),), 2, 2)],
        # The publisher began first, and committed last.
        [("a", Publish("3"), "published", 1, 4), ("b", Claim(3), (("1", 1), ("2", 1)), 2, 3)],
        # What another claim has locked is left out.
        [("a", Claim(), (("1", 1),), 1, 4), ("b", Claim(), (("2", 1),), 2, 3)],
        [("a", Transaction((Take(),)), ("failed", ()), 1, 4), ("b", Claim(), (("1", 1),), 2, 3)],
        # The connection was cut before, or meanwhile.
        [("b", Cut("a"), True, 1, 1), ("a", Claim(), FAILED, 2, 2), ("c", Claim(), TOLD, 3, 3)],
        [("b", Cut("a"), True, 1, 1), ("a", Transaction((Take(),)), ("failed", ()), 2, 2)],
        # Cut twice, and told twice.
        [
            ("b", Cut("a"), True, 1, 1),
            ("a", Claim(), FAILED, 2, 2),
            ("b", Cut("a"), True, 3, 3),
            ("a", Claim(), FAILED, 3, 4),
            ("a", Claim(), TOLD, 5, 5),
        ],
    ]
    for history in kept:
        assert _is_explained(history), history
    # The claim asks for what was due before the clock moved.
    late: History = [("a", Publish("3"), "published", 1, 1), ("b", Claim(), (), 2, 2)]
    assert _is_explained(late, start=[], seconds=(90, 0))
    assert not _is_explained(late, start=[], seconds=(90, 90))


def test_a_history_that_breaks_a_promise_is_not_explained() -> None:
    """Each breaks one promise, in a way that a client or the tables show."""
    claimed = ("a", Claim(), (("1", 1),), 1, 1)
    broken: dict[str, History] = {
        "failed without a reason": [("a", Claim(), FAILED, 1, 1), ("b", Cut("a"), True, 2, 2)],
        "cut, and claimed": [
            ("b", Cut("a"), True, 1, 1),
            ("a", Claim(), FAILED, 2, 2),
            ("c", Claim(), (("2", 1),), 3, 3),
        ],
        "failed, and nothing was cut": [
            ("b", Cut("a"), False, 1, 1),
            ("a", Claim(), FAILED, 2, 2),
        ],
        "cut once, and failed twice": [
            ("b", Cut("a"), True, 1, 1),
            ("a", Claim(), FAILED, 2, 2),
            ("a", Claim(), FAILED, 3, 3),
        ],
        "cut once, and failed in a transaction, too": [
            ("b", Cut("a"), True, 1, 1),
            ("a", Transaction((Take(),)), ("failed", ()), 2, 2),
            ("a", Claim(), FAILED, 3, 3),
        ],
        "delivered twice": [claimed, ("b", Claim(), (("1", 2),), 2, 2)],
        "an attempt that did not count": [claimed, ("a", ack, (("1", 0, False),), 2, 2)],
        "not the oldest first": [("a", Claim(), (("2", 1),), 1, 1)],
        "a batch out of order": [("a", Claim(2), (("2", 1), ("1", 1)), 1, 1)],
        "overlooked": [("a", Claim(2), (("1", 1),), 1, 1)],
        "lost": [("a", Observe(), _rows(_1=("ready", 0, -1)), 1, 1)],
        "stored without a publish": [
            (
                "a",
                Observe(),
                _rows(_1=("ready", 0, -1), _2=("ready", 0, -1), _3=("ready", 0, -1)),
                1,
                1,
            )
        ],
        "a stamp of nobody": [
            claimed,
            ("a", Observe(), _rows(_1=("claimed", 1, -2), _2=("ready", 0, -1)), 2, 2),
        ],
        "still there after its ack": [
            claimed,
            ("a", ack, (("1", 0, True),), 2, 2),
            ("a", Observe(), _rows(_1=("claimed", 1, 0), _2=("ready", 0, -1)), 3, 3),
        ],
        "an exchange that forgot the ack": [
            claimed,
            ("a", Exchange(), ((("1", 0, True),), (("2", 1),)), 2, 2),
            ("a", Observe(), _rows(_1=("claimed", 1, 0), _2=("claimed", 1, 1)), 3, 3),
        ],
        "a transaction that was done in part": [
            ("a", Transaction((Take(), Publish("3"))), ("committed", (("1",), "published")), 1, 2),
            ("a", Observe(), _rows(_2=("ready", 0, -1)), 3, 3),
        ],
        "a transaction that failed for no reason": [
            ("a", Transaction((Take(),)), ("failed", ()), 1, 2)
        ],
        "an edit that was not seen": [
            ("a", Edit("2", "front"), 1, 1, 1),
            ("b", Claim(), (("1", 1),), 2, 2),
        ],
        "a hold that was not kept": [
            ("a", Edit("1", "hold"), 1, 1, 1),
            ("b", Claim(), (("1", 1),), 2, 2),
        ],
    }
    for what, history in broken.items():
        assert not _is_explained(history), what


def test_it_knows_when_leases_are_over() -> None:
    """A lease ends by the clock, an extension moves its end, and who lost it settles nothing."""
    begins: History = [("a", Claim(), (("1", 1),), 1, 1), ("b", Advance(), None, 2, 2)]
    restored: History = [*begins, ("b", Restore(), 1, 3, 3)]
    assert _is_explained([*restored, ("a", ack, (("1", 0, False),), 4, 4)], clock=3)
    assert _is_explained([*restored, ("c", Claim(), (("1", 2),), 4, 4)], clock=3)
    assert not _is_explained([*restored, ("a", ack, (("1", 0, True),), 4, 4)], clock=3)
    assert not _is_explained([*begins, ("b", Restore(), 0, 3, 3)], clock=3)
    extended: History = [*begins, ("a", extend, (("1", 0, True),), 3, 3)]
    assert _is_explained([*extended, ("b", Restore(), 0, 4, 4)], clock=3)
    assert not _is_explained([*extended, ("b", Restore(), 1, 4, 4)], clock=3)


def test_it_knows_the_rules_of_groups_and_limits() -> None:
    """One message of a group in hand, in order, and so many of a queue."""
    groups = {"1": "x", "2": "x"}
    first = ("a", Claim(), (("1", 1),), 1, 1)
    second = ("b", Claim(), (("2", 1),), 2, 2)
    nothing = ("b", Claim(), (), 2, 2)
    delayed: History = [first, ("a", Settle("nack"), (("1", 0, True),), 2, 2)]
    assert _is_explained([first, nothing], grouped=True, groups=groups)
    assert not _is_explained([first, second], grouped=True, groups=groups)
    assert not _is_explained([*delayed, ("b", *second[1:3], 3, 3)], grouped=True, groups=groups)
    assert _is_explained([first, nothing], limit=1)
    assert not _is_explained([first, second], limit=1)
    assert not _is_explained([nothing], limit=1)


def test_it_knows_what_operators_and_dead_letters_do_to_groups() -> None:
    """What stops a group, what lets it go on, and how many of it may be in hand."""
    rules: dict[str, Any] = {"grouped": 1, "groups": {"1": "x", "2": "x"}, "blocks": True}
    pause: History = [("a", Group("x", "pause"), None, 1, 1)]
    nothing, first = ("b", Claim(), (), 5, 5), ("b", Claim(), TOLD, 5, 5)
    resumed: History = [*pause, ("a", Group("x", "resume"), None, 2, 2)]
    assert _is_explained([*pause, nothing], **rules)
    assert not _is_explained([*pause, first], **rules)
    assert not _is_explained([*resumed, nothing], **rules)

    dead: History = [
        ("a", Claim(), TOLD, 1, 1),
        ("a", Settle("reject"), (("1", 0, True),), 2, 2),
    ]
    behind = ("b", Claim(), (("2", 1),), 5, 5)
    for verb in (Group("x", "unblock"), Requeue("1")):
        let_go: History = [*dead, ("c", verb, 1 if isinstance(verb, Requeue) else None, 3, 3)]
        assert _is_explained([*let_go, behind], **rules)
        assert not _is_explained([*let_go, nothing], **rules)
    assert _is_explained([*dead, nothing], **rules)
    assert not _is_explained([*dead, behind], **rules)

    tried: History = [("a", Claim(), TOLD, 1, 1), ("b", Advance(), None, 2, 2)]
    for restored in (0, 1):
        last: History = [*tried, ("b", Restore(), restored, 3, 3)]
        assert _is_explained([*last, nothing], clock=3, most_attempts=1, **rules) != restored

    rules = {"grouped": 2, "ordered": False, "groups": {"1": "x", "2": "x", "3": "x"}}
    second: History = [("a", Claim(), TOLD, 1, 1), behind]
    third = ("c", Claim(), (("3", 1),), 6, 6)
    assert _is_explained(second, start="123", **rules)
    assert not _is_explained([*second, third], start="123", **rules)
    for limit in (1, 2, 3):
        own: History = [("d", Group("x", "configure", limit), None, 0, 0)]
        assert _is_explained([*own, *second], start="123", **rules) == (limit > 1)
        assert _is_explained([*own, *second, third], start="123", **rules) == (limit > 2)


def test_it_knows_who_has_a_key_and_what_a_full_queue_replaces() -> None:
    """A holder loses what is replaced; what waits keeps its key, or what is in hand does, too."""
    keys = {"1": "k", "3": "k"}
    claimed = ("a", Claim(), TOLD, 1, 1)
    new, replacing = Publish("3", key="k"), Publish("3", key="k", replaces=True)
    for waiting in (True, False):
        rules: dict[str, Any] = {"keys": keys, "waiting": waiting}
        assert not _is_explained([("b", new, "published", 2, 2)], **rules)
        assert _is_explained([claimed, ("b", new, "published", 2, 2)], **rules) == waiting
        assert _is_explained([claimed, ("b", new, "duplicate", 2, 2)], **rules) != waiting
        lost: History = [claimed, ("b", replacing, ("replaced", 1), 2, 2)]
        for told in (True, False):
            end = ("a", ack, (("1", 0, told),), 3, 3)
            assert _is_explained([*lost, end], **rules) == (not waiting and not told)
    full: dict[str, Any] = {"length": 2}
    assert _is_explained([("b", Publish("3"), ("replaced", 2), 1, 1)], **full)
    assert not _is_explained([("b", Publish("3"), "published", 1, 1)], **full)
    assert not _is_explained([claimed, ("b", Publish("3"), ("replaced", 1), 2, 2)], **full)
