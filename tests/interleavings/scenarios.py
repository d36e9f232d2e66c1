"""What the clients do, to be tried in every order of their statements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from tests.interleavings.acts import (
    Advance,
    Claim,
    Cut,
    Delete,
    Edit,
    Exchange,
    Group,
    Publish,
    Requeue,
    Restore,
    Settle,
    Take,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.interleavings.acts import Act


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Programs of two to four clients on one queue.

    Attributes:
        programs: what each client does, by its letter.
        start: the messages that are there before, the oldest first.
        settings: of the queue.
    """

    programs: Mapping[str, Sequence[Act]]
    start: Sequence[Publish] = (Publish("1"), Publish("2"))
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


GROUPS: Final[Mapping[str, Any]] = {"group_limit": 1}
IN_GROUPS: Final = (Publish("1", "x"), Publish("2", "x"), Publish("3", "y"))
LONG_DUE: Final = (
    Publish("1", "x", ago=100),
    Publish("2", "y", ago=90),
    Publish("3", "x", ago=80),
    Publish("4", "y", ago=70),
)
"""What its group blocks is parked by the first claim that meets it."""
ack, nack, release = Settle("ack"), Settle("nack"), Settle("release")
reject, extend = Settle("reject"), Settle("extend")

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "two consumers and a publisher": Scenario(
        {"a": [Claim(2), ack], "b": [Claim(), ack, Claim()], "c": [Publish("3")]}
    ),
    "a publisher that commits late": Scenario(
        {
            "a": [Claim(2), ack, Claim(), Claim()],
            "b": [Transaction((Publish("3", ago=80),))],
            "c": [Publish("4"), Claim()],
        },
        [Publish("1", ago=100), Publish("2", ago=50)],
    ),
    "an edit below the low watermark": Scenario(
        {"a": [Claim(2), Claim()], "b": [Edit("4", "front")], "c": [Publish("5")]},
        [Publish(label, ago=ago) for label, ago in zip("1234", (100, 50, 10, 5), strict=True)],
    ),
    "an exchange beside a claim": Scenario(
        {"a": [Claim(), Exchange(2), ack], "b": [Claim(), release], "c": [Publish("3")]}
    ),
    "a late ack": Scenario(
        {"a": [Claim(), ack], "b": [Advance(), Restore(), Claim(), ack]}, [Publish("1")]
    ),
    "late settlements of several": Scenario(
        {"a": [Claim(2), nack], "b": [Advance(), Restore(), Claim(), release]}
    ),
    "an extension beside the reaper": Scenario(
        {"a": [Claim(), extend, ack], "b": [Advance(), Restore()], "c": [Claim()]}, [Publish("1")]
    ),
    "two reapers": Scenario(
        {"a": [Claim(2), extend], "b": [Advance(), Restore()], "c": [Restore(), Claim(2)]}
    ),
    "edits beside claims": Scenario(
        {
            "a": [Claim(), Claim()],
            "b": [Edit("3", "front"), Edit("2", "hold")],
            "c": [Claim(), Edit("2", "unhold")],
        },
        [Publish("1"), Publish("2"), Publish("3")],
    ),
    "deletes and dead letters": Scenario(
        {
            "a": [Claim(), reject],
            "b": [Delete("1"), Requeue("1"), Claim(2)],
            "c": [Requeue("1"), Delete("2")],
        }
    ),
    "one key": Scenario(
        {
            "a": [Claim(), ack],
            "b": [Publish("2", key="k")],
            "c": [Publish("3", key="k"), Claim()],
        },
        [Publish("1", key="k")],
    ),
    "groups": Scenario(
        {"a": [Claim(), ack, Claim()], "b": [Claim(), release], "c": [Publish("4", "x")]},
        IN_GROUPS,
        GROUPS,
    ),
    "groups and the reaper": Scenario(
        {"a": [Claim(), ack], "b": [Advance(), Restore(), Claim(), ack], "c": [Claim(), nack]},
        IN_GROUPS,
        GROUPS,
    ),
    "groups and operators": Scenario(
        {"a": [Claim(), reject, Claim()], "b": [Delete("1"), Claim()], "c": [Edit("2", "hold")]},
        IN_GROUPS,
        GROUPS,
    ),
    "an exchange of first messages": Scenario(
        {"a": [Claim(2), Exchange(2), ack], "b": [Claim(), release], "c": [Publish("5", "x")]},
        LONG_DUE,
        GROUPS,
    ),
    "a late first message of a group": Scenario(
        {
            "a": [Claim(), Transaction((Take(), ack), "REPEATABLE READ")],
            "b": [Transaction((Publish("2", "x", ago=50),))],
            "c": [Publish("3", "x", ago=40), Claim(), nack],
        },
        [Publish("1", "y", ago=100)],
        GROUPS,
    ),
    "a last attempt blocks a group": Scenario(
        {
            "a": [Claim(), nack],
            "b": [Advance(), Restore(), Claim()],
            "c": [Requeue("1"), Group("x", "unblock"), Claim()],
        },
        LONG_DUE[:3],
        {**GROUPS, "block_on_failure": True, "max_attempts": 1},
    ),
    "groups without order and operators": Scenario(
        {
            "a": [Claim(2), ack, Claim()],
            "b": [Group("x", "pause"), Group("x", "configure", 1), Group("x", "resume")],
            "c": [Claim(), release, Group("x", "configure", 3)],
        },
        [
            Publish(label, "x", ago=ago)
            for label, ago in zip("1234", (100, 90, 80, 70), strict=True)
        ],
        {"group_limit": 2, "group_order": "any"},
    ),
    "one key of those that wait": Scenario(
        {
            "a": [Claim(), release],
            "b": [Publish("2", key="k"), Claim(), ack],
            "c": [Publish("3", key="k", replaces=True)],
        },
        [Publish("1", key="k")],
        {"unique": "waiting"},
    ),
    "one key in a full queue": Scenario(
        {
            "a": [Claim(), release],
            "b": [Publish("3", key="k")],
            "c": [Publish("4", key="k"), Claim(), ack],
        },
        settings={"max_length": 2, "when_full": "replace"},
    ),
    "a full queue and an operator": Scenario(
        {
            "a": [Publish("3")],
            "b": [Edit("2", "hold"), Claim(), ack],
            "c": [Publish("4")],
        },
        settings={"max_length": 2, "when_full": "replace"},
    ),
    "a full group and another one": Scenario(
        {
            "a": [Publish("2", "x")],
            "b": [Publish("3", "y", key="k", replaces=True)],
            "c": [Claim(2), ack],
        },
        [Publish("1", "x", key="k")],
        {**GROUPS, "when_full": "replace"},
    ),
    "a limit": Scenario(
        {"a": [Claim(), ack], "b": [Claim(), release], "c": [Claim(2)], "d": [Publish("3")]},
        settings={"queue_limit": 1},
    ),
    "transactions": Scenario(
        {
            "a": [Transaction((Take(), Publish("3")))],
            "b": [Claim(), Transaction((ack, Publish("4")))],
            "c": [Claim()],
        }
    ),
    "a transaction that is rolled back": Scenario(
        {
            "a": [Claim(), Transaction((ack, Publish("3")), commits=False), ack],
            "b": [Advance(), Restore(), Claim()],
            "c": [Transaction((Take(2),), commits=False)],
        }
    ),
    "a connection that is cut": Scenario(
        {
            "a": [Claim(), ack, Transaction((Take(), Publish("3")))],
            "b": [Cut("a")],
            "c": [Claim(), release],
        }
    ),
    "a connection that is cut, and groups": Scenario(
        {"a": [Claim(), nack, Claim()], "b": [Cut("a"), Publish("4", "x")], "c": [Claim(), ack]},
        IN_GROUPS,
        GROUPS,
    ),
    **{
        f"transactions at {level}": Scenario(
            {
                "a": [Transaction((Take(), Publish("3")), level)],
                "b": [Claim(), Transaction((ack, Publish("4")), level)],
                "c": [Advance(), Restore(), Claim()],
            }
        )
        for level in ("REPEATABLE READ", "SERIALIZABLE")
    },
}
