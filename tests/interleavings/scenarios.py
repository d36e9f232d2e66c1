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


GROUPS: Final = {"group_limit": 1}
IN_GROUPS: Final = (Publish("1", "x"), Publish("2", "x"), Publish("3", "y"))
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
