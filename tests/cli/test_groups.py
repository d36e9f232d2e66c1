"""The command `groups`, and those on one group."""

from __future__ import annotations

from typing import Any

import pytest

from queue_over_sql import FixedDelay, Publication
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import run, succeed
from tests.contract.groups.rules import each_rule

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def test_groups_are_listed_and_changed(database: TestDatabase, make_service: MakeService) -> None:
    """What each waits for stands in the table; the verbs take effect and say what they did."""
    url = database.url
    create = ("create", "jobs", "--group-limit", "1", "--block-on-failure", "yes")
    assert succeed(*create, "--json", url=url).record["block_on_failure"] is True
    queue = make_service(consumer_name="the packer").create_queue("jobs", retry=FixedDelay(3600))
    assert 3 == run("groups", "jobs", url=url).exit_code
    ids = [queue.publish(name, group=name[0]).id for name in ("a1", "a2", "a3", "b1", "c1", "d1")]
    queue.publish("nameless", group="")
    succeed("group", "pause", "jobs", "d", url=url)
    a1, b1, c1 = queue.consume(1) + queue.consume(1) + queue.consume(1)
    b1.nack("later")
    c1.reject("no")
    succeed("group", "configure", "jobs", "", "--limit", "4", url=url)

    lines = succeed("groups", "jobs", url=url).out.splitlines()
    table = {line.split()[0]: line for line in lines[1:]}

    assert {"a", "b", "c", "d", "''"} == table.keys()
    assert f"message {ids[0]}, claimed" in table["a"]
    assert table["a"].rstrip().endswith("the packer"), table
    assert f"message {ids[3]}, due in 59m" in table["b"]
    assert f"dead letter {ids[4]}" in table["c"]
    assert "resume, paused" in table["d"]
    assert "4 (own)" in table["''"]
    records = succeed("groups", "jobs", "--json", "--limit", "1", url=url).records
    assert [("a", "busy", 2, 1)] == [
        (each["name"], each["state"], each["waiting"], each["claimed"]) for each in records
    ]
    a1.ack()
    queue.publish("c2", group="c")
    said = succeed("group", "unblock", "jobs", "c", url=url).out
    assert "Group c of queue jobs is unblocked.\n" == said
    said = succeed("group", "resume", "jobs", "d", "--json", url=url).record
    assert {"queue": "jobs", "group": "d"} == said
    said = succeed("group", "configure", "jobs", "", "--limit", "none", url=url).out
    assert "Group '' of queue jobs has the limit of the queue.\n" == said
    weigh = ("group", "configure", "jobs", "", "--weight", "3", "--rate", "5/s")
    said = succeed(*weigh, url=url).out
    assert "Group '' of queue jobs has the rate 5/s and the weight 3.\n" == said
    info = queue.groups[""].info()
    assert (3, 3, "5/s") == (info.weight, info.own_weight, info.own_rate)
    # Only the retry in group b waits.
    assert ["a2", "a3", "c2", "d1", "nameless"] == sorted(
        message.payload for message in queue.consume(10) + queue.consume(10)
    )


def test_why_names_the_rule(database: TestDatabase, make_service: MakeService) -> None:
    """The command says what the library says, for each rule of groups and limits."""
    for queue, waiting, reason in each_rule(make_service()):
        asked = ("why", queue.name, str(waiting), "--json")
        record = succeed(*asked, url=database.url).record
        known = queue.why(waiting)
        assert (reason, known.text) == (record["reason"], record["text"])
        assert known.waits_for == record["waits_for"]


def test_messages_of_a_group(database: TestDatabase, make_service: MakeService) -> None:
    """``--group`` selects by bytes, also the empty name, for each command that takes filters."""
    url = database.url
    queue = make_service().create_queue("jobs", group_limit=1, archive="all")
    names = ["a", "A", "a ", "é", ""]
    queue.publish_many([Publication([n, i], group=n) for i in range(2) for n in [*names, None]])

    def found(*words: str, group: str) -> list[Any]:
        ended = run(*words, "--json", "--group", group, url=url)
        return [each["payload"] for each in ended.records]

    for name in names:
        assert [[name, 0], [name, 1]] == found("peek", "jobs", group=name)
    [held] = queue.consume(1)
    assert [["", 0], ["", 1]] == found("search", "jobs", group="")
    assert [["a", 1]] == found("peek", "jobs", "--status", "ready", group="a")
    succeed("edit", "jobs", "--group", "A", "--hold", "--yes", url=url)
    assert [["A", 0], ["A", 1]] == [each.payload for each in queue.messages(status="held").list()]
    held.reject("no")
    assert [["a", 0]] == found("peek", "jobs", "--archive", group="a")
    assert [] == found("peek", "jobs", "--archive", group="")
    assert 3 == run("requeue", "jobs", "--group", "A", "--yes", url=url).exit_code
    succeed("requeue", "jobs", "--group", "a", "--yes", url=url)
    assert 0 == queue.archive.messages().count()
    succeed("edit", "jobs", "--group", "", "--remove", "--yes", url=url)
    assert 10 == queue.messages().count()
    make_service().create_queue("plain")
    refused = run("peek", "plain", "--group", "a", url=url)
    assert (2, True) == (refused.exit_code, "has no groups" in refused.err), refused


def test_groups_that_are_none(database: TestDatabase, make_service: MakeService) -> None:
    """A queue without groups says how to turn them on; a limit must be one."""
    make_service().create_queue("plain")
    for words in (("groups", "plain"), ("group", "pause", "plain", "a")):
        done = run(*words, url=database.url)
        assert (2, True) == (done.exit_code, "has no groups" in done.err), done
    configure = ("group", "configure", "plain", "a")
    assert 2 == run(*configure, url=database.url).exit_code
    for number in ("0", "-1", "many"):
        for option in ("limit", "weight"):
            done = run(*configure, f"--{option}={number}", url=database.url)
            assert (2, True) == (done.exit_code, f"--{option}" in done.err), done
