"""`requeue`: finished messages are requeued, or the error says why not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from queue_over_sql import Publication, Queue, QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import Ended, on_terminal, run, succeed
from tests.contract.queue_state import finished

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def test_chosen_ones_get_a_new_life(database: TestDatabase, make_service: MakeService) -> None:
    """By the filters of the archive, on every engine; the others stay where they are."""
    queue = make_service().create_queue("jobs", archive="all")
    queue.publish_many([Publication(n, kind=kind) for n, kind in enumerate("aab")])
    finished(queue, "rejected", 3, reason="no stock")
    [error] = succeed("dead", "jobs", "--json", url=database.url).records
    assert ("no stock", 3) == (error["error"], error["count"])
    other = run("requeue", "jobs", "--error", "0" * 16, "--yes", url=database.url)
    assert 3 == other.exit_code
    options = (
        "--error",
        error["fingerprint"],
        "--status",
        "rejected",
        "--kind",
        "a",
        "--where",
        "attempt_count = 1",
        "--yes",
    )
    done = succeed("requeue", "jobs", *options, "--json", url=database.url).record
    assert {"queue": "jobs", "requeued": 2} == done
    again = queue.consume(10)
    assert [(0, "no stock"), (1, "no stock")] == [
        (message.payload, message.headers["previous_error"]) for message in again
    ]
    assert [2] == [message.payload for message in queue.archive.messages().list()]


def test_ids_choose_messages(sqlite_url: str, jobs: Queue) -> None:
    """As in show and cancel, beside filters; code 5 where some ids did not match."""
    first, second, _ = (jobs.publish(each).id for each in "abc")
    finished(jobs, "rejected", 3)
    other = run("requeue", "jobs", str(first), "--where", "id = 3", "--yes", url=sqlite_url)
    assert 3 == other.exit_code
    assert 3 == jobs.stats().archived
    done = succeed("requeue", "jobs", str(first), "--where", "id > 0", "--yes", url=sqlite_url)
    assert "Requeued 1 message of queue jobs." == done.out.strip()
    assert 2 == jobs.stats().archived
    some = run("requeue", "jobs", str(second), "99", "--yes", url=sqlite_url)
    assert 5 == some.exit_code
    assert "1 of 2 ids did not match." in some.err
    assert 3 == run("requeue", "jobs", "99", "--yes", url=sqlite_url).exit_code
    [third] = jobs.archive.messages().list()
    succeed("archive", "remove", "jobs", str(third.id), "--yes", url=sqlite_url)
    [again, other_one] = jobs.messages().list()
    ended = run("edit", "jobs", str(again.id), "99", "--remove", "--yes", url=sqlite_url)
    assert 5 == ended.exit_code
    assert "Removed 1 message of queue jobs permanently." == ended.out.strip()
    assert [other_one.id] == [m.id for m in jobs.messages().list()]
    assert 0 == jobs.stats().archived


def test_it_says_how_many_and_asks(sqlite_url: str, jobs: Queue) -> None:
    """A no leaves the archive as it is; a yes empties it."""
    jobs.publish_many([1, 2])
    finished(jobs, "rejected", 2)
    refused, agreed = (
        run("requeue", "jobs", "--all", url=sqlite_url, stdin=answer) for answer in ("n\n", "y\n")
    )
    assert 1 == refused.exit_code
    assert "" == refused.out
    assert 0 == agreed.exit_code
    assert "Requeue 2 messages of queue jobs?" in agreed.err
    assert "Requeued 2 messages of queue jobs." == agreed.out.strip()


def test_all_is_meant_only_where_it_is_said(sqlite_url: str) -> None:
    """Without filters --all is needed, and with filters it has no place: code 2."""
    succeed("create", "jobs", url=sqlite_url)
    for options in ((), ("--all", "--kind", "a")):
        ended = run("requeue", "jobs", *options, "--yes", url=sqlite_url)
        assert 2 == ended.exit_code, options
        assert "--all" in ended.err, options


def test_nothing_to_requeue_is_code_3(sqlite_url: str) -> None:
    """Asked for or not."""
    succeed("create", "jobs", url=sqlite_url)
    for option in ("--all", "--yes"):
        ended = run("requeue", "jobs", "--all", option, url=sqlite_url)
        assert 3 == ended.exit_code
        assert "" == ended.out


def test_a_live_key_is_explained(sqlite_url: str, jobs: Queue) -> None:
    """Code 1; nothing was requeued; what is advised works as it is typed."""
    jobs.publish("old", key="it's")
    finished(jobs, "rejected")
    live = jobs.publish("new", key="it's")
    ended = run("requeue", "jobs", "--all", "--yes", url=sqlite_url)
    assert 1 == ended.exit_code
    assert "" == ended.out
    assert f"message {live.id} already has the key" in ended.err
    assert "this transaction requeued nothing" in ended.err
    assert 1 == jobs.stats().archived
    advice = """queue-over-sql archive remove jobs --key 'it'"'"'s'"""
    assert advice in ended.err
    succeed("archive", "remove", "jobs", "--key", "it's", "--yes", url=sqlite_url)
    assert 0 == jobs.stats().archived
    assert 1 == jobs.stats().ready


def test_one_key_twice_in_the_archive_is_explained(sqlite_url: str, jobs: Queue) -> None:
    """Both cannot live at once: the text says how to look at them and to send one."""
    for payload in ("first", "second"):
        jobs.publish(payload, key="k")
        finished(jobs, "rejected")
    ended = run("requeue", "jobs", "--key", "k", "--yes", url=sqlite_url)
    assert 1 == ended.exit_code
    assert "search jobs --archive --key k" in ended.err
    assert "requeue jobs ID" in ended.err
    ids = [message.id for message in jobs.archive.messages(key="k").list()]
    succeed("requeue", "jobs", "--where", f"id = {ids[1]}", "--yes", url=sqlite_url)
    assert ["second"] == [message.payload for message in jobs.messages().list()]


def test_what_was_done_before_an_error_is_said(sqlite_url: str, jobs: Queue) -> None:
    """The transactions before the one that failed stand, and their number is given."""
    jobs.load(range(600))
    jobs.publish("last", key="k")
    finished(jobs, "rejected", 601)
    jobs.publish("new", key="k")
    ended = run("requeue", "jobs", "--all", "--yes", url=sqlite_url)
    assert 1 == ended.exit_code
    assert "500 messages done before the error." in ended.err
    assert 101 == jobs.stats().archived


def test_requeueing_many_shows_how_far_it_is(sqlite_url: str, jobs: Queue) -> None:
    """On a terminal there is a bar that ends at the number of messages."""
    jobs.load(range(1200))
    finished(jobs, "rejected", 1200)
    code, shown = on_terminal("requeue", "jobs", "--all", "--yes", url=sqlite_url)
    assert 0 == code
    assert "1200/1200" in shown
    assert "Requeued 1,200 messages of queue jobs." in shown


def test_the_payload_is_edited_before_it_is_sent_again(
    database: TestDatabase, make_service: MakeService, tmp_path: Path
) -> None:
    """What the editor leaves is checked; the rest of the message and its new life are as ever."""
    service = make_service()
    queue = service.create_queue("jobs", dedup_window=3600)
    texts = service.create_queue("texts", payload="text")
    dead = queue.publish({"to": "nobody", "n": 1}, key="k", headers={"trace": "t"}).id
    queue.publish({"to": "other"})
    texts.publish("nobody")
    for each in (queue, texts):
        each.reject(each.consume(2), "no address")

    def edit(name: str, editor: str, *which: str) -> Ended:
        edit = (name, "--edit", "--yes", *which)
        return run("requeue", *edit, url=database.url, EDITOR=editor, TMPDIR=str(tmp_path))

    assert "--edit changes exactly one message" in edit("jobs", "true", "--all").err
    assert "Set EDITOR" in edit("jobs", "no-such-editor", "--key", "k").err
    assert [] == list(tmp_path.glob("queue-over-sql-*"))
    for editor in ("sed -i s/}//", "false"):
        refused = edit("jobs", editor, "--key", "k")
        [kept] = tmp_path.glob("queue-over-sql-*")
        assert 2 == refused.exit_code, refused.err
        assert str(kept) in refused.err, refused.err
        kept.unlink()
    assert 2 == queue.archive.messages().count()
    assert 0 == edit("jobs", "sed -i s/nobody/ada/", "--key", "k").exit_code
    assert 0 == edit("texts", "sed -i s/nobody/bob/", "--all").exit_code
    [sent] = queue.consume(2)
    assert {"to": "ada", "n": 1} == sent.payload
    assert "k" == sent.key
    added = {"requeued_from": dead, "previous_error": "no address"}
    assert {"trace": "t", **added} == sent.headers
    assert ["bob"] == [message.payload for message in texts.consume()]
    assert [] == list(tmp_path.glob("queue-over-sql-*"))


def test_only_the_message_that_was_edited_gets_the_text(
    sqlite_url: str, jobs: Queue, tmp_path: Path
) -> None:
    """One that comes to match meanwhile stays as it is, and no text of the user is lost."""
    url = sqlite_url
    first, second = (jobs.publish({"order": name}).id for name in "ab")
    _, held = jobs.consume(2)
    held.reject("no stock")
    cancel = f"{sys.executable} -m queue_over_sql --url {url} cancel jobs {first} --yes"
    editor = tmp_path / "editor"
    editor.write_text(f"#!/bin/sh\n{cancel} && sed -i s/b/c/ $1\n")
    editor.chmod(0o755)
    edit = ("requeue", "jobs", "--status", "rejected", "--edit")

    def asked(program: str, *options: str) -> Ended:
        where = str(tmp_path)
        return run(*edit, *options, url=url, stdin="n\n", EDITOR=program, TMPDIR=where)

    assert 0 == asked(str(editor), "--yes").exit_code
    assert [({"order": "c"}, second)] == [
        (message.payload, message.headers["requeued_from"]) for message in jobs.messages().list()
    ]
    assert [{"order": "a"}] == [message.payload for message in jobs.archive.messages().list()]
    # It goes while it is edited; the answer is no.
    remove = f"{sys.executable} -m queue_over_sql --url {url} archive remove jobs --all --yes"
    editor.write_text(f"#!/bin/sh\n{remove}\n")
    for program, options, code in (("true", (), 1), (str(editor), ("--yes",), 3)):
        ended = asked(program, *options)
        [kept] = tmp_path.glob("queue-over-sql-*")
        assert code == ended.exit_code, ended.err
        assert str(kept) in ended.err, ended.err
        assert {"order": "a"} == json.loads(kept.read_text())
        kept.unlink()
    assert [{"order": "c"}] == [message.payload for message in jobs.messages().list()]


def test_an_edited_text_keeps_its_line_ends(sqlite_url: str) -> None:
    """The editor alone changes a text: lines may end as those of CSV files and mails do."""
    edit, editor = ("requeue", "texts", "--all", "--edit", "--yes"), "sed -i s/Split/Zagreb/"
    with QueueService(sqlite_url) as service:
        texts = service.create_queue("texts", payload="text")
        texts.publish("name,city\r\nada,Split\r\n")
        texts.consume()[0].reject("no such city")
        assert 0 == run(*edit, url=sqlite_url, EDITOR=editor).exit_code
        assert ["name,city\r\nada,Zagreb\r\n"] == [each.payload for each in texts.consume()]
