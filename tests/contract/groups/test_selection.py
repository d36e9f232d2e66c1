"""Messages that are selected by their group, in the queue and in its archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import FixedDelay, Publication
from queue_over_sql.queue import core_of
from tests.contract.queue_state import set_columns

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.selection.selection import Selection
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides

# Equal to some collation or normalisation, or to a database that drops spaces.
NAMES = ("a", "A", "a ", "\u00e9", "e\u0301", "ß", "ss", "")


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with groups of which five messages may be in hand."""
    return service.create_queue("jobs", group_limit=5, archive="all", retry=FixedDelay(3600))


def payloads(selection: Selection) -> list[object]:
    """What is selected, as ``list`` and ``count`` say it."""
    found = [message.payload for message in selection.list()]
    assert selection.count() == len(found)
    return found


def test_a_name_selects_its_messages_by_its_bytes(jobs: Queue) -> None:
    """The empty name is one; None selects all, also those without a group. So in the archive."""
    names = [*NAMES, None]
    jobs.publish_many([Publication([n, i], group=n) for i in range(2) for n in names])
    held = jobs.consume(3)
    for name in NAMES:
        assert [[name, 0], [name, 1]] == payloads(jobs.messages(group=name)), name
    assert 2 * len(names) == len(payloads(jobs.messages(group=None)))
    assert [] == payloads(jobs.messages(group="aa"))
    jobs.ack(held)
    while more := jobs.consume(100):
        jobs.ack(more)
    for name in NAMES:
        assert [[name, 0], [name, 1]] == payloads(jobs.archive.messages(group=name)), name
    assert 2 * len(names) == len(payloads(jobs.archive.messages()))


def test_a_group_is_selected_with_other_filters(jobs: Queue) -> None:
    """By status, wherever the message waits, page by page, and in both directions."""
    for number in range(12):
        jobs.publish(number, group="ab"[number % 2], kind=f"k{number % 3}")
    [first, *_] = in_hand = [message for message in jobs.consume(6) if message.group == "a"]
    first.nack("no")
    # The rest of the group is parked.
    assert [[]] * 3 == [[m for m in jobs.consume(9) if m.group == "a"] for _ in range(3)]
    jobs.messages(group="a", where=jobs.table.c.id > first.id + 7).hold()
    numbers = {
        status: payloads(jobs.messages(group="a", status=status))
        for status in ("ready", "delayed", "claimed", "held")
    }
    claimed = [message.payload for message in in_hand[1:]]
    rest = [n for n in range(0, 12, 2) if n not in [*claimed, 0]]
    assert {
        "ready": [n for n in rest if n <= 7],
        "delayed": [0],
        "claimed": claimed,
        "held": [n for n in rest if n > 7],
    } == numbers
    assert [0, 6] == payloads(jobs.messages(group="a", kind="k0"))
    assert [6] == payloads(jobs.messages(group="a", kind="k0", status="ready"))
    selection = jobs.messages(group="a")
    page = selection.list(limit=4)
    assert [0, 2, 4, 6] == [message.payload for message in page]
    assert [8, 10] == [message.payload for message in selection.list(after=page[-1].id)]
    newest = selection.list(limit=2, newest_first=True)
    assert [10, 8] == [message.payload for message in newest]
    following = selection.list(limit=3, after=newest[-1].id, newest_first=True)
    assert [6, 4, 2] == [message.payload for message in following]
    assert first.id == getattr(selection.first(), "id", None)


def test_an_edit_of_a_group_leaves_others_alone(jobs: Queue, tmp_path: Path) -> None:
    """Edit and remove what waits, count what is in hand; requeue and export what ended."""
    ids = [jobs.publish(n, group="ab"[n % 2]).id for n in range(6)]
    held = jobs.consume(2)
    assert ["a", "b"] == [message.group for message in held]
    edited = jobs.messages(group="a").reschedule(delay=60)
    assert (2, 1) == (edited, edited.skipped)
    assert [2, 4] == payloads(jobs.messages(status="delayed"))
    removed = jobs.messages(group="b").remove(progress=lambda _: None)
    assert (2, 1) == (removed, removed.skipped)
    jobs.reject(held, "no")
    assert 1 == jobs.archive.export(tmp_path / "b.jsonl", group="b")
    assert 1 == jobs.archive.messages(group="b").requeue()
    assert [1] == payloads(jobs.messages(group="b"))
    assert ids[:1] == [message.id for message in jobs.archive.messages().list()]


@pytest.mark.threads("the reaper is that of threads")
def test_a_broken_claim_is_still_found_without_its_group(jobs: Queue, engine: Engine) -> None:
    """It has no status, so no filter selects it until the reaper gives it back."""
    number = jobs.publish(1, group="a").id
    set_columns(engine, jobs, number, consumer_id="nobody")
    assert [1] == payloads(jobs.messages())
    core_of(jobs).recovery._looked_through = (float("-inf"), -(2**63))
    list(core_of(jobs).recovery.edited_claims())
    assert [1] == payloads(jobs.messages(group="a"))


# On H2 nobody else may be connected when groups are turned on.
@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.threads("each service is a process of its own")
def test_groups_that_another_process_turned_on(make_service: MakeService) -> None:
    """A service that knew the queue without groups selects by the columns that there are now."""
    plain = make_service().create_queue("jobs", archive="all")
    assert [] == plain.consume()
    other = make_service().create_queue("jobs", group_limit=1)
    other.publish_many([Publication(n, group="ab"[n % 2]) for n in range(4)])
    other.ack(other.consume(1))
    assert [2] == payloads(plain.messages(group="a"))
    assert [1, 3] == payloads(plain.messages(group="b", status="ready"))
    assert [0] == payloads(plain.archive.messages(group="a"))
