"""The pages of the dashboard, as a browser without JavaScript sees them."""

from __future__ import annotations

import contextlib
import html
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from sqlalchemy import Connection, event, update
from sqlalchemy import text as sql
from starlette.applications import Starlette
from starlette.routing import Mount

from queue_over_sql import (
    Delays,
    ExponentialBackoff,
    FixedDelay,
    NoRetry,
    Publication,
    inside,
)
from queue_over_sql.dialects.sqlite.checkup import SQLiteCheckup
from queue_over_sql.observability import AtLeast, counting, history
from queue_over_sql.observability.counting import Counting, QueueCounts, SharedSnapshot
from queue_over_sql.observability.history import History
from queue_over_sql.service import parts_of
from queue_over_sql.values.findings import Finding, Level
from queue_over_sql.values.fingerprints import fingerprint
from queue_over_sql.web import changes, charts, humanize, shown_messages, snapshot
from queue_over_sql.web.app import create_app
from queue_over_sql.web.cron_words import cron_words
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.snapshot import Snapshots
from queue_over_sql.web.tables import WebStore
from tests.contract.existing_tables.users_tables import Invoice, create_invoices
from tests.contract.groups.rules import each_rule
from tests.waiting import wait_until
from tests.web.browser import Browser

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.engines("sqlite")
Open = Callable[..., Browser]

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "\u202etxt.exe\x1b[2J\x00"[:-1],
    "{{ 7*7 }}",
)


@pytest.fixture
def service(make_service: MakeService) -> QueueService:
    """A service whose queue has messages of each kind."""
    service = make_service()
    queue = service.create_queue("jobs", archive="all", retry=NoRetry())
    queue.publish_many([{"n": n, "card": {"number": "4711"}} for n in range(20)])
    queue.ack(queue.consume(3))
    for message in queue.consume(4):
        message.nack(ValueError(f"no customer {message.id}"))
    for message in queue.consume(2):
        message.reject("card declined")
    return service


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """Its queue: 11 ready, 3 done, 4 failed and 2 rejected messages."""
    return service.queue("jobs")


@pytest.fixture
def open_site(service: QueueService) -> Iterator[Open]:
    """Serve the dashboard, by default to an administrator of this machine."""
    with ExitStack() as stack:

        def begin(prefix: str = "", **settings: Any) -> Browser:
            given = {"open_role": Role.ADMIN, **settings}
            app: Any = create_app(service, WebSettings(**given))
            if prefix:
                app = Starlette(routes=[Mount(prefix, app)])
            browser = Browser(stack.enter_context(serving(app)), prefix)
            stack.callback(browser.close)
            return browser

        yield begin


def test_every_page_answers(service: QueueService, open_site: Open) -> None:
    """And each link on it, too."""
    service.create_topic("news").subscribe("jobs", "order.*")
    service.schedules.add("nightly", "jobs", {"n": 1}, cron="0 3 * * *")
    service.start()
    browser = open_site()
    seen: set[str] = set()
    paths = {"/"}
    while paths - seen:
        path = min(paths - seen)
        seen.add(path)
        text = browser.get(path)
        assert "default-src 'none'" in browser.page.headers["content-security-policy"]
        found = {link.split("#")[0] for link in links(text)}
        paths |= {link for link in found if link and "?" not in link and "/static/" not in link}
    assert {"/queues/jobs/messages", "/schedules", "/audit", "/queues/jobs/dead"} <= seen


def links(text: str) -> list[str]:
    """Where the links of a page lead."""
    return [
        part.split('"')[0] for part in text.split("<a ")[1:] for part in part.split('href="')[1:]
    ]


def test_pages_show_groups(open_site: Open, jobs: Queue, service: QueueService) -> None:
    """The group of a message, and how many of one the queue lets run."""
    browser = open_site()
    assert "<dt>Groups</dt>" not in browser.get("/queues/jobs")
    service.create_queue("jobs", group_limit=2)
    number = jobs.publish({"n": 1}, group="<customer 7>").id
    assert '/groups">&lt;customer 7&gt;</a></dd>' in browser.get(f"/queues/jobs/messages/{number}")
    assert "<dt>Groups</dt><dd>2 of one group at once, in order</dd>" in browser.get("/queues/jobs")


def test_the_page_of_a_message_says_why_it_waits(open_site: Open, jobs: Queue) -> None:
    """What waits or is in hand has the reason, and what has ended has its story instead."""
    number = jobs.publish({"n": 1}, delay=3600, expires=7200).id
    path, browser = f"/queues/jobs/messages/{number}", open_site()
    text = browser.get(path)
    assert "<dt>Why it waits</dt>" in text
    assert "It is due at" in text
    assert "It expires at" in text
    assert "<li>Expires <time" in text
    jobs.messages(where=jobs.table.c.id == number).reschedule(delay=0)
    [message] = [each for each in jobs.consume(1_000) if each.id == number]
    assert "<dt>Why it is not done</dt>" in browser.get(path)
    message.reject("bad")
    assert "<dt>Why" not in browser.get(path)


def test_the_page_of_a_message_names_its_rule(open_site: Open, service: QueueService) -> None:
    """What holds it up in its group, or the limit of its queue; a name is no markup."""
    browser = open_site()
    for queue, waiting, _ in each_rule(service):
        text = browser.get(f"/queues/{queue.name}/messages/{waiting}")
        [said] = re.findall('<dt>Why it waits</dt><dd id="why">([^<]*)</dd>', text)
        assert queue.why(waiting).text == html.unescape(said)


def test_nothing_of_a_message_is_markup(service: QueueService, open_site: Open) -> None:
    """Payloads, keys, headers, errors and tracebacks are text, also of what cannot be seen."""
    queue = service.create_queue("texts", payload="text", archive="all", retry=NoRetry())
    ids = []
    for number, text in enumerate(HOSTILE):
        key = f"{number}{text}"
        ids.append(queue.publish(text, key=key, headers={"h": text}).id)
        queue.consume()[0].nack(ValueError(text))
        queue.publish(text, key=f"live {key}", delay=3600)
    browser = open_site()
    for path in (
        "/queues/texts/messages",
        "/queues/texts/archive",
        "/queues/texts/dead",
        *(f"/queues/texts/messages/{each}" for each in ids),
    ):
        text = browser.get(path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert 'href="javascript' not in text
    assert "{{ 7*7 }}" in browser.text()


def test_numbers_are_as_they_were_published(jobs: Queue, open_site: Open) -> None:
    """Also those that JavaScript would round."""
    number = 2**60 + 1
    found = jobs.publish({"n": number})
    assert str(number) in open_site().get(f"/queues/jobs/messages/{found.id}")


def test_a_large_payload_is_not_read_whole(service: QueueService, open_site: Open) -> None:
    """Its beginning is shown, and where to see the rest; lists read none."""
    queue = service.create_queue("large", payload="text", max_payload_bytes=2**25)
    number = queue.publish("x" * 2**24).id
    browser = open_site()
    assert len(browser.get(f"/queues/large/messages/{number}")) < 100_000
    assert f"queue-over-sql show large {number}" in browser.text()
    assert len(browser.get("/queues/large/messages")) < 100_000
    assert "xxx" not in browser.text()
    assert "Payloads are not shown here" in browser.text()


def test_filters_suggest_what_the_page_shows(service: QueueService, open_site: Open) -> None:
    """Keys and kinds, as text; none that would look like another."""
    texts = service.create_queue("texts", payload="text")
    for number, text in enumerate(HOSTILE):
        texts.publish("a", key=text, kind=f"kind{number}")
    text = open_site().get("/queues/texts/messages")
    keys = text.split('<datalist id="known-key">')[1].split("</datalist>")[0]
    found = [html.unescape(each) for each in re.findall('<option value="([^"]*)">', keys)]
    assert sorted(each for each in HOSTILE if "\x1b" not in each) == found
    assert '<datalist id="known-kind"><option value="kind0">' in text


def test_hidden_fields_stay_hidden(jobs: Queue, open_site: Open) -> None:
    """On pages, and from those who search by them."""
    browser = open_site(masked=("card.number",))
    (message,) = jobs.messages().list(1)
    assert "4711" not in browser.get(f"/queues/jobs/messages/{message.id}")
    browser.get("/queues/jobs/messages?field=card.number&value=4711", 422)
    browser.get("/queues/jobs/messages")
    browser.press("Hold", 422, field="card.number", value="4711", all="1")
    assert 0 == jobs.stats().held


def test_pages_of_messages_follow_each_other(open_site: Open, jobs: Queue) -> None:
    """In both orders, each message once; an address can be shared."""
    browser = open_site(page_size=4)
    ids = [message.id for message in jobs.messages().list()]
    for order, wanted in (("oldest", ids), ("newest", ids[::-1])):
        found: list[int] = []
        text = browser.get(
            f"/queues/jobs/messages?order={order}&field=card.number&value=%224711%22"
        )
        while True:
            found += [int(part.split('"')[0]) for part in text.split('name="id" value="')[1:]]
            following = [part for part in links(text) if "after=" in part]
            if not following:
                break
            text = browser.get(following[-1].replace("&amp;", "&"))
        assert wanted == found


def test_groups_have_a_page(open_site: Open, service: QueueService) -> None:
    """With what each waits for; a button changes one, and its change can be undone."""
    lines = service.create_queue("lines", group_limit=1, block_on_failure=True)
    names = ("a<b>&", "a<b>&", "c", "")
    ids = [lines.publish(n, group=name).id for n, name in enumerate(names)]
    lines.consume(1)[0].reject("no")
    browser = open_site()
    assert "Groups" not in browser.get("/queues/jobs")
    assert "/queues/lines/groups" in links(browser.get("/queues/lines"))
    browser.get("/queues/lines/groups")
    assert f"dead letter {ids[0]}" in browser.text()
    browser.press("Unblock")
    assert "Deliver the messages behind the dead letter of group a<b>&?" in browser.text()
    browser.press("Unblock")
    assert "Unblocked group a<b>&." in browser.text()
    assert None is lines.groups["a<b>&"].info().blocked_by
    browser.press("Pause", group="c")
    assert "Paused group c." in browser.text()
    assert lines.groups["c"].info().paused_since is not None
    browser.press("Undo")
    assert None is lines.groups["c"].info().paused_since
    browser.press("Change", group="", limit="4")
    assert "has the limit 4." in browser.text()
    assert 4 == lines.groups[""].info().limit
    browser.press("Undo")
    assert None is lines.groups[""].info().own_limit
    browser.get("/queues/lines/groups")
    browser.press("Change", group="", rate="5/min")
    assert "has the rate 5/min." in browser.text()
    assert "5/min" == lines.groups[""].info().own_rate
    browser.get("/queues/lines/groups")
    browser.press("Change", 422, group="c", limit="-1")
    shared = service.create_queue("shared", group_fair=True)
    shared.publish(1, group="a")
    assert "any number of one group at once, in fair shares" in browser.get("/queues/shared")
    assert "in hand from each group, in fair shares." in browser.get("/queues/shared/groups")
    browser.press("Change", group="a", weight="3")
    assert "has the weight 3." in browser.text()
    assert 3 == shared.groups["a"].info().weight
    browser.press("Undo")
    assert None is shared.groups["a"].info().own_weight
    browser.get("/queues/jobs/groups")
    assert "has no groups" in browser.text()


def test_a_pause_can_be_undone(open_site: Open, jobs: Queue) -> None:
    """The page that follows offers it, and the audit has both."""
    browser = open_site()
    browser.get("/queues/jobs")
    browser.press("Pause")
    assert "Paused jobs." in browser.text()
    assert jobs.stats().paused
    browser.press("Undo")
    assert not jobs.stats().paused
    browser.get("/audit")
    assert browser.text().index("resume") < browser.text().index("pause jobs")


def test_a_schedule_is_run_by_hand(open_site: Open, jobs: Queue, service: QueueService) -> None:
    """After a question, and the audit says which message came of it."""
    service.schedules.add("nightly", "jobs", {"report": 1}, cron="0 0 29 2 *")
    browser = open_site()
    browser.get("/schedules")
    browser.press("Run now")
    assert "Publish one message of nightly now?" in browser.text()
    assert 11 == jobs.stats().ready
    browser.press("Run now")
    (message,) = jobs.messages(payload={"report": 1}, status="ready").list()
    told = f"Ran the schedule nightly. It published message {message.id} ."
    assert told in browser.text()
    # Its last runs have their outcomes.
    assert f"message {message.id} ready" in browser.text()
    jobs.ack([each for each in jobs.consume(20) if each.id == message.id])
    browser.get("/schedules")
    assert f"message {message.id} done" in browser.text()
    assert "at 00:00 on 29 February" in browser.text()
    assert "2028-02-29" in browser.text()
    browser.press("Pause")
    assert "2028-02-29" not in browser.text()
    browser.get("/audit")
    assert f"run-schedule 1 schedule nightly, message {message.id}" in browser.text()


def test_a_schedule_with_an_unknown_time_zone_hides_no_other(
    open_site: Open, jobs: Queue, service: QueueService
) -> None:
    """Another system may know it; the page says so beside the schedule."""
    assert "jobs" == jobs.name
    for name in ("europe", "mars"):
        service.schedules.add(name, "jobs", 1, cron="0 3 * * *", timezone="Europe/Zagreb")
    mars = sql(
        "UPDATE queue_over_sql_schedules"
        " SET definition = replace(definition, 'Europe/Zagreb', 'Mars/Olympus') WHERE name = 'mars'"
    )
    with parts_of(service).connections.engine.begin() as connection:
        connection.execute(mars)
    browser = open_site()
    browser.get("/schedules")
    assert "The times of schedule 'mars' cannot be calculated" in browser.text()
    assert "europe active every day at 03:00 0 3 * * * Europe/Zagreb" in browser.text()


def test_dead_letters_are_sent_again(open_site: Open, jobs: Queue) -> None:
    """All that failed alike, after a question that counts them."""
    browser = open_site()
    browser.get("/dead")
    assert "no customer" in browser.text()
    browser.press("Requeue one")
    # The error that came last is the first one.
    assert "Queue jobs Message 9 Error card declined " in browser.text()
    browser.get("/dead")
    browser.press("Requeue these 4")
    assert "Requeue 4 messages?" in browser.text()
    assert "Message 9" not in browser.text()
    assert "Queue jobs Error ValueError: no customer 7 " in browser.text()
    assert 4 == jobs.stats().failed
    browser.press("Requeue")
    assert "Requeued 4 messages." in browser.text()
    assert 0 == jobs.stats().failed
    assert 2 == jobs.stats().rejected
    assert 15 == jobs.stats().ready
    browser.get("/audit")
    assert "requeue jobs 4 error ValueError: no customer # " in browser.text()


def test_the_errors_of_all_queues_are_listed(
    service: QueueService, open_site: Open, jobs: Queue
) -> None:
    """The one that came last first, page by page, with what happened in the last 24 hours."""
    other = service.create_queue("mails", archive="failed", retry=NoRetry())
    other.publish_many(range(3))
    for message in other.consume(3):
        message.nack(KeyError(f"customer {message.id}"))
    browser = open_site(page_size=2)
    browser.get("/dead")
    text = browser.text()
    assert text.index("KeyError") < text.index("card declined")
    assert "3 in the last 24 hours" in browser.page.text
    assert "ValueError" not in text
    mine = fingerprint("KeyError: 'customer 1'")
    assert f"/queues/mails/archive?error={mine}" in links(browser.page.text)
    browser.get("/dead?after=2")
    assert "ValueError: no customer" in browser.text()
    browser.get("/dead")
    browser.press("Remove these 3")
    browser.press("Remove")
    assert 0 == other.stats().failed
    assert 4 == jobs.stats().failed
    browser.get("/queues/jobs/archive?error=x", 422)


def test_errors_are_read_as_far_as_they_are_shown(
    service: QueueService, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many queues only those whose last error may be on the page; no page misses one."""
    queues = [service.create_queue(f"q{n}", archive="failed", retry=NoRetry()) for n in range(6)]
    for queue in queues:
        queue.publish_many(range(3))
    for word in ("one", "two", "three"):
        for queue in queues:
            queue.consume(1)[0].nack(f"{word} failed")
    # The clock of the database may not tell them apart.
    times = itertools.count(2_000_000_000_000_000, 1_000)
    with parts_of(service).connections.engine.begin() as connection:
        for number, queue in itertools.product(range(3), queues):
            archive = queue.archive.table
            of_it = (
                archive.c.id == sorted(each.id for each in queue.archive.messages().list())[number]
            )
            connection.execute(update(archive).where(of_it).values(finished_at=next(times)))
    ended = [(queue, each) for queue in queues for each in queue.archive.messages().list()]
    ended.sort(key=lambda one: str(one[1].finished_at), reverse=True)
    read, listed = [], inside.errors

    def spy(queue: Queue, **given: Any) -> Any:
        read.append(queue.name)
        return listed(queue, **given)

    monkeypatch.setattr(inside, "errors", spy)
    browser, found = open_site(page_size=2), []
    for start in range(0, len(ended), 2):
        browser.get(f"/dead?after={start}")
        found += re.findall(r'href="/queues/(\w+)/archive\?error=(\w+)"', browser.page.text)
        assert start or len(read) <= 3
    assert [(queue.name, fingerprint(each.last_error)) for queue, each in ended] == found


def test_the_messages_of_an_error_are_listed(open_site: Open, jobs: Queue) -> None:
    """Page by page; those that are chosen, or all of them, are sent again."""
    browser, same = open_site(page_size=3), fingerprint("ValueError: no customer 7")
    browser.get("/queues/jobs/dead")
    assert f"/queues/jobs/archive?error={same}" in links(browser.page.text)
    browser.get(f"/queues/jobs/archive?error={same}")
    assert "Dead letters with this error: ValueError: no customer 7" in browser.text()
    listed = [link.rpartition("/")[2] for link in links(browser.page.text) if "messages/" in link]
    assert ["7", "6", "5"] == listed
    browser.get(f"/queues/jobs/archive?order=newest&after=5&error={same}")
    assert "/queues/jobs/messages/4" in links(browser.page.text)
    browser.get(f"/queues/jobs/archive?error={same}")
    browser.press("Requeue", id="6")
    assert "Requeue 1 message?" in browser.text()
    browser.press("Requeue")
    browser.post("/do/redrive", queue="jobs", error=same, all="1", csrf=csrf_of(browser))
    assert "Requeue 3 messages?" in browser.text()
    browser.press("Requeue")
    assert 0 == jobs.stats().failed
    assert 2 == jobs.stats().rejected
    assert "No archived message matches." in browser.get(f"/queues/jobs/archive?error={same}")


def test_a_requeued_message_is_found_again(open_site: Open, jobs: Queue) -> None:
    """From the page that requeued it, and by its earlier id."""
    browser = open_site()
    browser.get("/queues/jobs/messages/7")
    browser.press("Requeue")
    browser.press("Requeue")
    anew = jobs.messages(status="ready").list()[-1].id
    assert f"Requeued 1 message. It is now message {anew} ." in browser.text()
    assert f"/queues/jobs/messages/{anew}" in links(browser.page.text)
    browser.get("/queues/jobs/messages/7", 404)
    assert f"It was requeued. It is now message {anew} ." in browser.text()
    browser.get(f"/queues/jobs/messages/{anew}")
    assert "Before, it was message 7" in browser.text()
    browser.get("/queues/jobs/messages/6543", 404)
    assert "It may have ended without being archived." in browser.text()


def test_very_many_are_sent_again_in_steps(
    open_site: Open, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has its row in the audit, and one that fails says what was done before it."""
    monkeypatch.setattr(changes, "_STEP", 2)
    jobs.publish_many([Publication(n, key=str(n)) for n in range(5)])
    for message in jobs.messages(where=jobs.table.c.message_key.is_not(None)).list():
        jobs.cancel(message.id)
    taken = jobs.publish("taken", key="3")
    browser = open_site()
    fields: dict[str, Any] = {"queue": "jobs", "status": "rejected", "all": "1"}
    fields["csrf"] = csrf_of(browser)
    browser.post("/do/redrive", **fields)
    assert "Requeue 7 messages?" in browser.text()
    browser.post("/do/redrive", confirmed="6", **fields)
    assert "Requeue 7 messages?" in browser.text()
    assert 7 == jobs.stats().rejected
    browser.post("/do/redrive", 409, confirmed="7", **fields)
    assert "Before that, 4 messages had been requeued." in browser.text()
    assert 3 == jobs.stats().rejected
    jobs.cancel(taken.id)
    jobs.archive.messages(where=jobs.archive.table.c.id == taken.id).remove()
    browser.post("/do/redrive", confirmed="7", **fields)
    assert "Requeued 3 messages." in browser.text()
    browser.get("/audit")
    told = [row.split("</td>")[4] for row in browser.page.text.split("<tr>")[2:]]
    assert ["1", "2", "2", "2"] == [each.rpartition(">")[2] for each in told]


def test_a_payload_is_edited_and_requeued(open_site: Open, jobs: Queue) -> None:
    """The page tells each failed attempt; the question shows what changes, the answer leads on."""
    browser = open_site()
    dead = jobs.archive.messages(status="failed").list(1)[0].id
    text = browser.get(f"/queues/jobs/messages/{dead}")
    assert "<h2>Failed attempts</h2>" in text
    assert f"ValueError: no customer {dead}" in text
    assert text.count("<summary>Traceback</summary>") == 0
    fields: dict[str, Any] = {"queue": "jobs", "id": str(dead), "csrf": csrf_of(browser)}
    browser.post("/do/edit", 422, payload="{", **fields)
    assert "not valid JSON" in browser.text()
    browser.post("/do/edit", payload='{"n": 3, "card": {"number": "<b>1</b>"}}', **fields)
    assert "Requeue 1 message with another payload?" in browser.text()
    assert '<span class="gone">-    &#34;number&#34;: &#34;4711&#34;</span>' in browser.page.text
    assert "&lt;b&gt;1&lt;/b&gt;" in browser.page.text
    browser.press("Requeue with this payload")
    assert "Requeued 1 message with another payload." in browser.text()
    anew = jobs.messages().list(99)[-1]
    assert {"n": 3, "card": {"number": "<b>1</b>"}} == anew.payload
    fields["id"] = str(anew.id)
    browser.post("/do/max-attempts", max_attempts="7", **fields)
    browser.post("/do/delay", delay="1h30m", **fields)
    assert "1 message will be due in 1 h 30 min." in browser.text()
    assert "Undo" in browser.text()
    # What was due later would be due at once.
    browser.post("/do/delay", delay="1h", **fields)
    assert "Undo" not in browser.text()
    browser.post("/do/delay", 422, delay="soon", **fields)
    browser.post("/do/delay", 422, delay="99999999999999", **fields)
    assert f"ids {dead}; with another payload" in " ".join(browser.get("/audit").split())
    (message,) = jobs.messages(status="delayed").list()
    assert (anew.id, 7) == (message.id, message.max_attempts)
    # What is masked cannot be edited unseen.
    masked = open_site(masked=["card.number"])
    other = jobs.archive.messages(status="failed").list(1)[0].id
    assert "Edit and requeue" not in masked.get(f"/queues/jobs/messages/{other}")
    assert "Edit and requeue" in browser.get(f"/queues/jobs/messages/{other}")


def test_more_than_was_asked_about_is_asked_again(open_site: Open, jobs: Queue) -> None:
    """What came meanwhile was in nobody's mind."""
    browser = open_site()
    browser.get("/queues/jobs/messages?status=ready")
    browser.press("Hold", 422)
    assert "Choose at least one message: tick the boxes" in browser.text()
    assert 'href="/queues/jobs/messages?status=ready">Back</a>' in browser.page.text
    assert 0 == jobs.stats().held
    browser.get("/queues/jobs/messages?status=ready")
    ids = [str(message.id) for message in jobs.messages().list(2)]
    browser.press("Remove", id=ids)
    assert "Permanently remove 2 messages?" in browser.text()
    asked = browser.page
    browser.press("Remove")
    assert 9 == jobs.stats().ready
    browser.page = asked
    browser.press("Remove", 422)
    assert "Nothing was changed" in browser.text()


def test_all_that_match_may_grow(open_site: Open, jobs: Queue) -> None:
    """A confirmed count is the most that is removed."""
    browser = open_site()
    fields: dict[str, Any] = {
        "queue": "jobs",
        "status": "failed",
        "all": "1",
        "csrf": csrf_of(browser),
    }
    browser.post("/do/remove-archived", **fields)
    assert "Permanently remove 4 messages from the archive?" in browser.text()
    asked = browser.page
    jobs.publish({"n": 1})
    jobs.consume(20)[-1].nack("again")
    browser.page = asked
    browser.press("Remove")
    assert "Permanently remove 5 messages from the archive?" in browser.text()
    assert 5 == jobs.stats().failed
    # Live messages have no error to be chosen by.
    browser.post("/do/hold", 422, queue="jobs", error="0" * 16, confirmed="99", csrf=fields["csrf"])
    assert 0 == jobs.stats().held


def csrf_of(browser: Browser) -> str:
    """The token of the forms of this browser."""
    text = browser.get("/queues/jobs")
    return text.split('name="csrf" value="')[1].split('"')[0]


def test_a_queue_is_dropped_by_its_name(open_site: Open, service: QueueService) -> None:
    """Which has to be typed."""
    browser = open_site()
    browser.get("/queues/jobs")
    browser.press("Drop")
    browser.press("Drop", typed="job")
    assert "Drop jobs with all its messages" in browser.text()
    browser.press("Drop", typed="jobs")
    assert [] == service.queues()


def test_tokens_are_made_and_removed(open_site: Open, service: QueueService) -> None:
    """Shown once, to an administrator alone; wrong ones say what is wrong."""
    store = WebStore(service, WebSettings())
    store.prepare()
    root, _ = store.add_token("root", Role.ADMIN)
    browser = open_site(open_role=None)
    browser.sign_in(root)
    browser.get("/tokens")
    for wrong, told in (
        ({"token": "a b", "role": "viewer"}, "the name of a token must be"),
        ({"token": "ada", "role": "king"}, "role must be"),
        ({"token": "ada", "role": "viewer", "days": "x"}, "Enter a number of days"),
        ({"token": "root", "role": "viewer"}, "already exists"),
    ):
        form = browser.page
        browser.press("Add", 409 if wrong["token"] == "root" else 422, **wrong)
        assert told in browser.text()
        browser.page = form
    browser.press("Add", token="ada", role="viewer", days="1.5")
    assert "The token of ada, viewer." in browser.text()
    secret = browser.page.text.split('<code class="mono" id="secret">')[1].split("<")[0]
    assert [("ada", Role.VIEWER), ("root", Role.ADMIN)] == [
        (token.name, token.role) for token in store.tokens()
    ]
    assert secret not in browser.get("/tokens")
    assert "in 36 h" in browser.text()
    viewer = open_site(open_role=None)
    viewer.sign_in(secret)
    viewer.get("/tokens", 403)
    browser.press("Remove")
    assert "Remove the token of ada?" in browser.text()
    browser.press("Remove")
    assert ["root"] == [token.name for token in store.tokens()]
    browser.get("/audit")
    assert "remove-token token ada" in browser.text()
    assert secret not in browser.text()


def test_settings_are_changed_and_changed_back(
    service: QueueService, open_site: Open, jobs: Queue
) -> None:
    """A value that makes no sense is refused."""
    browser = open_site()
    browser.get("/queues/jobs")
    browser.press("Change", lease="60", max_attempts="7", archive="all")
    assert "Changed jobs: lease 60, max_attempts 7." in browser.text()
    jobs.refresh()
    assert timedelta(minutes=1) == jobs.settings.lease
    assert 7 == jobs.settings.max_attempts
    browser.press("Undo")
    jobs.refresh()
    assert timedelta(minutes=5) == jobs.settings.lease
    assert 5 == jobs.settings.max_attempts
    browser.get("/queues/jobs")
    browser.press("Change", 422, lease="soon", max_attempts="7", archive="all")
    # An age that the form does not change stays exactly as it is.
    long, exact = timedelta(days=30), timedelta(days=30, seconds=1, microseconds=1)
    service.create_queue("jobs", lease=long, warn_age=exact)
    shown = dict(
        re.findall(r'name="(lease|warn_age)"[^>]* value="([^"]*)"', browser.get("/queues/jobs"))
    )
    assert {"lease": "2592000", "warn_age": "2592001.000001"} == shown
    browser.press("Change", max_attempts="8", **shown)
    jobs.refresh()
    settings = jobs.settings
    assert (8, long, exact) == (settings.max_attempts, settings.lease, settings.warn_age)


def test_an_old_page_changes_only_what_its_user_entered(
    service: QueueService, open_site: Open, jobs: Queue
) -> None:
    """Settings and rules of groups that another admin changed meanwhile stay."""
    browser = open_site()
    old = browser.get("/queues/jobs")
    shown = _fields_of(old, "Change")
    service.create_queue("jobs", lease=600, warn_age=60, archive="failed")
    browser.press("Change", 200, **shown | {"max_attempts": "7"})
    assert "Changed jobs: max_attempts 7." in browser.text()
    browser.press("Undo")
    assert "Changed jobs: max_attempts 5." in browser.text()
    jobs.refresh()
    kept = jobs.settings
    assert (600, 60, "failed") == (
        kept.lease.total_seconds(),
        kept.warn_age and kept.warn_age.total_seconds(),
        kept.archive,
    )
    browser.press("Change", 200, **_fields_of(browser.get("/queues/jobs"), "Change"))
    assert "The settings have not changed." in browser.text()
    grouped = service.create_queue("grouped", group_limit=2)
    grouped.publish(1, group="a")
    shown = _fields_of(browser.get("/queues/grouped/groups"), "Change")
    grouped.groups["a"].configure(limit=5)
    browser.press("Change", 200, **shown | {"rate": "9/min"})
    rules = grouped.groups["a"].info()
    assert (5, "9/min") == (rules.own_limit, rules.own_rate)
    browser.press("Undo")
    rules = grouped.groups["a"].info()
    assert (5, None) == (rules.own_limit, rules.own_rate)


def _fields_of(page: str, button: str) -> dict[str, str]:
    """What a browser sends for the form with this button, besides what is hidden."""
    [form] = [each for each in page.split("<form")[1:] if f"<button>{button}</button>" in each]
    content = form.partition("</form>")[0]
    found = dict(re.findall(r'<input name="(\w+)"[^>]* value="([^"]*)"', content))
    chosen = re.findall(r'<select name="(\w+)">.*?<option selected>(\w+)', content)
    return found | dict(chosen)


def test_a_look_is_stretched_where_it_has_no_time(
    open_site: Open, service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading counts what it may, and the page says which queues were counted before."""
    queues = [service.create_queue(f"q{number}") for number in range(20)]
    browser, shared = open_site(), Snapshots(service)
    assert 20 == [each.counts["ready"] for each in shared.overview().queues].count(0)
    assert "counted " not in browser.get("/")
    monkeypatch.setattr(snapshot, "_LOOK_SECONDS", -1.0)
    for each in queues:
        each.publish(1)
    for late in (1, 0):
        shared.forget()
        seen = shared.overview()
        assert late == [each.counts["ready"] for each in seen.queues].count(0)
        assert 21 == len(seen.queues)
        assert 1 == len(seen.counted_at)
    browser.post("/do/pause", queue="q0", csrf=csrf_of(browser))
    assert 1 == browser.get("/").count('<span class="soft small">counted <time')
    # What was changed here is counted first, whose turn it ever is.
    for name in ("q8", "q9", "q7"):
        browser.post("/do/pause", queue=name, csrf=csrf_of(browser))
        row = browser.get("/").partition(f">{name}</a>")[2].partition("</td>")[0]
        assert "counted <time" not in row, name


def test_a_change_during_a_reading_is_read_next(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading may have seen what was before, so it is no reason to wait with the next one."""
    numbers = iter(range(3))

    def read(_: int | None) -> int:
        number = next(numbers)
        if number == 0:
            seen.forget()
        return number

    seen = SharedSnapshot(read, 3600.0)
    assert [0, 1, 1] == [seen.seen() for _ in range(3)]
    # Of queues that are counted in turn, the changed one is the first.
    queues = [service.create_queue(f"q{number:02}") for number in range(21)]
    shared, count = Snapshots(service), Counting.count

    def counted(*given: Any, **more: Any) -> list[QueueCounts]:
        found = count(*given, **more)
        if not queues[-1].stats().ready:
            queues[-1].publish(1)
            shared.forget(queues[-1].name)
        return found

    monkeypatch.setattr(snapshot, "_LOOK_SECONDS", -1.0)
    monkeypatch.setattr(Counting, "count", counted)
    assert 0 == shared.overview().queues[-1].counts["ready"]
    assert 1 == shared.overview().queues[-1].counts["ready"]


def test_an_old_message_colours_its_queue(open_site: Open, service: QueueService) -> None:
    """Beyond the ages of the queue's settings, on the front page and on its own."""
    queue, browser = service.create_queue("mails"), open_site()
    queue.publish(1)
    old = update(queue.table).values(available_at=queue.table.c.available_at - 120_000_000)
    inside.run(queue, lambda c: c.execute(old), atomic=True)
    late = re.compile(r'<span class="tag (bad|warn)">2 min')
    assert not late.search(browser.get("/"))
    browser.get("/queues/mails")
    browser.press("Change", warn_age="60")
    assert "warn_age 60" in browser.text()
    assert "oldest ready, over 1 min" in browser.text()
    assert ["warn"] == late.findall(browser.get("/"))
    browser.get("/queues/mails")
    browser.press("Change", warn_age="60", critical_age="90.5")
    assert ["bad"] == late.findall(browser.get("/"))
    browser.get("/queues/mails")
    browser.press("Change", 422, warn_age="91", critical_age="90.5")
    browser.get("/queues/mails")
    browser.press("Change", warn_age="", critical_age="90.5")
    queue.refresh()
    assert (None, timedelta(seconds=90.5)) == (
        queue.settings.warn_age,
        queue.settings.critical_age,
    )
    browser.press("Undo")
    queue.refresh()
    assert timedelta(minutes=1) == queue.settings.warn_age


@pytest.mark.usefixtures("jobs")
def test_the_audit_is_filtered_and_says_from_what_to_what(open_site: Open) -> None:
    """By user, operation, queue and day; with the time itself, and with both values."""
    browser = open_site()
    csrf = csrf_of(browser)
    browser.post("/do/settings", queue="jobs", lease="60", csrf=csrf)
    browser.post("/do/pause", queue="jobs", csrf=csrf)
    text = browser.get("/audit")
    at = re.findall(r"<time [^>]*>(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d UTC</time>", text)
    assert 2 == len(at)
    assert "lease 5 min → 1 min" in browser.text()
    for query, rows in {
        f"who=local&what=pause&queue=jobs&day={at[0]}": 1,
        "who=ada": 0,
        "what=settings": 1,
        "queue=mails": 0,
        "day=2020-01-31": 0,
    }.items():
        assert rows == browser.get(f"/audit?{query}").count('<td class="line"><time'), query
    browser.get("/audit?day=yesterday", 422)


def test_cron_is_said_in_words() -> None:
    """What is common, and nothing that would be wrong; what is rare stays an expression."""
    said = {
        "0 3 * * *": "every day at 03:00",
        "@daily": "every day at 00:00",
        "30 6,18 * * 1-5": "at 06:30 and 18:30 from Monday to Friday",
        "0 9 * * mon,sun": "at 09:00 on Monday and Sunday",
        "0 9 * * 7": "at 09:00 on Sunday",
        "0 0 1 * *": "at 00:00 on day 1 of each month",
        "5 4 1,15 jan,7 *": "at 04:05 on 1 and 15 January and July",
        "*/15 * * * *": "every 15 minutes",
        "* * * * 6": "every minute, on Saturday",
        "@hourly": "every hour",
        "5 * * * *": "every hour at minute 5",
        "0 */6 * * *": "every 6 hours",
        "10 */6 * * *": "every 6 hours at minute 10",
        # In words these would be long or wrong.
        "*/7 * * * *": "",
        "0 */5 * * *": "",
        "0 0 13 * 5": "",
        "1-5 * * * *": "",
        "0 1,2,3,4,5 * * *": "",
        "no cron": "",
    }
    assert said == {cron: cron_words(cron) for cron in said}


def test_settings_are_said_in_words(open_site: Open, service: QueueService) -> None:
    """Retry policies, durations and conditions, as no Python value is."""
    hour = timedelta(hours=1)
    options: dict[str, Any] = {"archive": "all", "archive_ttl": {"done": hour, "failed": None}}
    policies: dict[str, tuple[Any, str]] = {
        "grows": (ExponentialBackoff(), "after 1 s, 2 s, 4 s, 8 s and so on, up to 1 h"),
        "fixed": (FixedDelay(90), "after 1 min 30 s"),
        "listed": (Delays([1, 10, hour]), "after 1 s, 10 s, then 1 h"),
        "none": (NoRetry(), "never: the first failure makes a dead letter"),
    }
    for name, (policy, _) in policies.items():
        service.create_queue(name, retry=policy, dedup_window=hour, **options)
    service.schedules.add("regular", "fixed", {"n": 1}, every=5400)
    service.create_topic("news").subscribe("fixed", "#", where={"paid": True, "by": None})
    browser = open_site()
    for name, (_, told) in policies.items():
        browser.get(f"/queues/{name}")
        assert f"Retry {told} Priorities" in browser.text()
        assert "Archive kept for done 1 h, others for ever Deduplication 1 h" in browser.text()
    browser.get("/schedules")
    assert "every 1 h 30 min" in browser.text()
    browser.get("/topics")
    assert "by = null, paid = true" in browser.text()


def test_charts_show_what_services_recorded(
    open_site: Open, make_service: MakeService, jobs: Queue
) -> None:
    """Rates on the overview, and plots of an hour, a day and a week."""
    recording = make_service(observer=History())
    recording.create_queue("idle")
    queue = recording.queue("jobs")
    queue.publish({"n": 1})
    queue.ack(queue.consume(4))
    queue.consume(1)[0].nack("again")
    recording.stop()
    browser = open_site()
    assert "No activity was recorded" in browser.get("/queues/idle")
    for span in ("hour", "day", "week"):
        browser.get(f"/queues/jobs?span={span}")
        assert "4 done" in browser.text()
        assert "Handling time" in browser.text()
    browser.get("/queues/jobs?span=year", 422)
    assert jobs.name in browser.get("/")
    assert "4 done in the last hour" in browser.text()


def test_a_viewer_changes_nothing(open_site: Open, service: QueueService, jobs: Queue) -> None:
    """No button is there, and a form of their own is refused."""
    store = WebStore(service, WebSettings())
    store.prepare()
    token, _ = store.add_token("vera", Role.VIEWER)
    browser = open_site(open_role=None)
    assert "Sign in" in browser.get("/queues/jobs")
    assert "20" not in browser.text()
    browser.sign_in("qos_wrong", 401)
    browser.sign_in(token)
    browser.get("/queues/jobs")
    assert "vera, viewer" in browser.text()
    assert 'action="/do/' not in browser.page.text
    csrf = browser.page.text.split('name="csrf" value="')[1].split('"')[0]
    browser.post("/do/pause", 403, queue="jobs", csrf=csrf)
    assert not jobs.stats().paused
    browser.press("Sign out")
    assert "Token" in browser.get("/queues/jobs")


@pytest.mark.parametrize("refused", ["no token", "another origin", "another host", "read-only"])
def test_forms_of_others_are_refused(open_site: Open, jobs: Queue, refused: str) -> None:
    """Whoever is at this machine is an administrator, and their browser visits other sites."""
    browser = open_site(read_only=refused == "read-only")
    root = browser.root
    text = browser.get("/")
    csrf = browser.get("/queues/jobs").split('name="csrf" value="')
    fields = {"queue": "jobs", "csrf": csrf[1].split('"')[0] if len(csrf) > 1 else "x"}
    headers = {"origin": root}
    if refused == "no token":
        fields["csrf"] = "x"
    elif refused == "another origin":
        headers["origin"] = "https://evil.example"
    elif refused == "another host":
        headers["host"] = "evil.example"
    answer = httpx2.post(f"{root}/do/pause", data=fields, headers=headers, trust_env=False)
    assert 403 == answer.status_code, text
    assert not jobs.stats().paused


def test_a_theme_is_kept_in_a_cookie(open_site: Open, service: QueueService) -> None:
    """The page has it from its first byte, also where nobody signed in; no other text gets in."""
    del service
    browser = open_site("/below")
    assert "data-theme" not in browser.get("/queues/jobs/messages?order=newest")
    assert 'data-theme="dark"' in browser.press("Dark", theme="dark")
    assert str(browser.page.url).endswith("/below/queues/jobs/messages?order=newest")
    assert 'data-theme="dark"' in browser.get("/sign-in")
    assert "data-theme" not in browser.press("System", theme="system")
    for theme in ('"><script>', "", "none"):
        assert "data-theme" not in browser.post("/theme", theme=theme)
    browser.get("/queues/jobs")
    browser.press("Purge")
    assert 'data-theme="light"' in browser.press("Light", theme="light")
    assert str(browser.page.url).endswith("/below/queues/jobs")


def test_it_can_be_mounted(open_site: Open, jobs: Queue) -> None:
    """All addresses on its pages are below its own."""
    browser = open_site("/ops/queues")
    for path in ("/", "/queues/jobs", "/queues/jobs/messages"):
        text = browser.get(path)
        assert all(link.startswith(("/ops/queues/", "#")) for link in links(text))
        assert 'src="/ops/queues/static/' in text
    browser.press("Hold", id=str(jobs.messages().list(1)[0].id))
    assert "Held 1 message." in browser.text()
    assert (
        "text/css"
        in httpx2.get(f"{browser.root}/ops/queues/static/style.css", trust_env=False).headers[
            "content-type"
        ]
    )


def test_browsers_keep_static_files(open_site: Open) -> None:
    """As long as their content is the same; pages are not kept."""
    browser = open_site("/ops")
    page = browser.get("/")
    assert "no-store" == browser.page.headers["cache-control"]
    linked = [each for each in page.split('"') if each.startswith("/ops/static/")]
    assert 4 == len(linked)
    for link in linked:
        browser.get(link.removeprefix("/ops"))
        assert "immutable" in browser.page.headers["cache-control"]
    browser.get("/static/style.css?0123456789abcdef")
    assert "no-store" == browser.page.headers["cache-control"]


def test_a_kept_connection_delays_no_answer(service: QueueService) -> None:
    """As it would if the server sent the head and the rest of an answer apart, and waited."""
    times = []
    with serving(create_app(service)) as root, httpx2.Client(trust_env=False) as client:
        for _ in range(20):
            began = time.monotonic()
            client.get(f"{root}/livez").raise_for_status()
            times.append(time.monotonic() - began)
    # The first answer on a connection is never delayed, each later one would be by 0.04 s.
    assert min(times[1:]) < 0.03


def test_probes_ask_nobody_who_they_are(make_service: MakeService) -> None:
    """Live and ready, as a worker says it with --http; the end of the service is told, no more."""
    service = make_service()
    with serving(create_app(service)) as root:

        def probe(path: str) -> tuple[int, dict[str, str]]:
            answer = httpx2.get(f"{root}{path}", trust_env=False)
            assert answer.headers["content-type"].startswith("application/json")
            return answer.status_code, answer.json()["checks"]

        # What is in the database can be looked at, also where the service never starts.
        assert (200, {"database": "ok"}) == probe("/readyz")
        service.start()
        assert (200, {"heartbeat": "ok", "database": "ok"}) == probe("/readyz")
        assert 200 == probe("/livez")[0]
        assert 405 == httpx2.post(f"{root}/livez", trust_env=False).status_code
        service.stop()
        assert (503, {"service": "it was stopped"}) == probe("/readyz")


def test_browsers_hear_of_changes(
    open_site: Open, jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an event, after which they fetch what is live."""
    # On a slow machine looks would become rare.
    monkeypatch.setattr(snapshot, "_SHARE", 1.0)
    browser = open_site()
    root, lines = browser.root, list[str]()

    def listen() -> None:
        with httpx2.stream("GET", f"{root}/events", timeout=30, trust_env=False) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if line == "event: changed":
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    wait_until(lambda: "event: age" in lines)
    jobs.publish({"n": 1})
    thread.join(30)
    assert "event: changed" in lines
    ages = [lines[at + 1] for at, line in enumerate(lines) if line == "event: age"]
    assert all(re.fullmatch(r"data: \d+ 0", age) for age in ages), ages
    for path in ("/", "/queues/jobs"):
        part = browser.get(f"{path}?live=1")
        assert "12" in part
        assert "<html" not in part
    assert "because counting takes long" not in browser.get("/")
    monkeypatch.setattr(Snapshots, "pause", 40.0)
    assert "and every 40 s, because counting takes long" in browser.get("/")

    def said(every: int) -> str:
        address = f"{root}/events?every={every}"
        with httpx2.stream("GET", address, timeout=30, trust_env=False) as answer:
            return next(line for line in answer.iter_lines() if re.match(r"data: \d", line))

    # Whoever wants to see the queues every minute misses nothing.
    assert [40, 40, 0] == [int(said(every).split()[2]) for every in (2, 15, 60)]


def test_who_looks_seldom_costs_little(service: QueueService) -> None:
    """Who wants the queues every minute gets a count that is younger than that."""
    shared = Snapshots(service, interval=0.0)
    first = shared.overview()
    assert first is shared.overview(60.0)
    assert first is not shared.overview()


def test_a_queue_says_who_handles_it(open_site: Open, make_service: MakeService) -> None:
    """Its page has the consumers with their kinds, and that of the consumers has their queues."""
    served = make_service(consumer_name="billing")
    queue = served.create_queue("served", kinds={"Order": dict})
    page = open_site().get("/queues/served")
    assert "No living consumer handles this queue." in page
    assert [] == queue.consume()
    page = open_site().get("/queues/served")
    row = page.split('aria-label="Handled by"')[1].split("</table>")[0]
    assert all(each in row for each in ("billing", "its own loop", "Order"))
    assert "served</a> " in open_site().get("/consumers")


def test_the_pace_of_a_queue() -> None:
    """By whole minutes, of at most ten; the backlog is reckoned back from what there is."""
    now = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    begins = now.replace(second=0)
    minutes = [
        history.Minute("jobs", begins, published=1000),
        history.Minute("jobs", begins - timedelta(minutes=1), published=10, done=30, failed=2),
        history.Minute("jobs", begins - timedelta(minutes=2), published=30, done=48),
        history.Minute("jobs", begins - timedelta(minutes=30), published=500),
    ]
    assert charts.Pace(20.0, 40.0, 15 * 60) == charts.pace(minutes, 300, now)
    idle = [replace(each, done=0, failed=0) for each in minutes[1:3]]
    assert charts.Pace(20.0, 0.0, None) == charts.pace(idle, 300, now)
    assert charts.pace(minutes[:1], 300, now) is None
    drawn = charts.charts(minutes, "hour", now, AtLeast(1300))
    assert "Backlog, at least" in drawn
    for backlog in ("1.3k", "300", "322", "340"):
        assert f": unfinished {backlog}<" in drawn


def test_counts_have_a_limit(open_site: Open, jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is said as such; nothing is counted beyond it. In a list of many queues it is lower."""
    monkeypatch.setattr(snapshot, "COUNT_LIMIT", 5)
    monkeypatch.setattr(snapshot, "COARSE_LIMIT", 4)
    assert ">5+</a>" in open_site().get("/")
    assert 11 == jobs.stats().ready
    monkeypatch.setattr(snapshot, "MANY", 0)
    site = open_site()
    page = site.get("/")
    assert ">4+</a>" in page
    # What is added to such a count is one, too.
    assert "<b>4+</b><span>ready</span>" in page
    assert ">5+</b>" in site.get("/queues/jobs")


def test_the_clock_is_the_databases(
    open_site: Open, service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web server whose clock is wrong by an hour shows the same as one whose clock is right."""

    class Late(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Late:
            return cls.fromtimestamp(time.time() + 3600, tz)

    service.start()
    for name, module in list(sys.modules.items()):
        if name.startswith("queue_over_sql.web.") and hasattr(module, "datetime"):
            monkeypatch.setattr(module, "datetime", Late)
    browser = open_site()
    page = browser.get("/consumers")
    assert "alive</span>" in page
    assert "expired</span>" not in page
    assert not re.search(r">\d+ (min|h) ago<|>in \d", page), page


def test_all_viewers_share_one_look(service: QueueService) -> None:
    """However many ask, and however long it takes."""
    engine = parts_of(service).connections.engine
    statements: list[str] = []
    shared = Snapshots(service, interval=60)
    shared.overview()
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    threads = [threading.Thread(target=shared.overview) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == statements
    shared.forget()
    shared.overview()
    assert statements


def test_a_page_of_one_queue_counts_no_other(service: QueueService, open_site: Open) -> None:
    """With a hundred queues a count of all takes longer than everything else on the page."""
    service.create_queue("others")
    browser, statements = open_site(), list[str]()
    engine = parts_of(service).connections.engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    for path in ("", "/messages", "/archive", "/dead"):
        assert "jobs" in browser.get(f"/queues/jobs{path}")
    browser.get("/consumers")
    assert [] == [each for each in statements if "queue_others_archive" in each]
    assert any("queue_jobs_archive" in each for each in statements)


def test_the_page_about_health_does_not_wait_for_a_long_check_up(
    open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that one runs, later shows what was found, and does not run two at once."""
    runs = threading.Semaphore(0)
    ended = threading.Event()

    def slow(service: QueueService) -> list[Finding]:
        del service
        runs.release()
        ended.wait()
        return [Finding(Level.WARNING, "clocks", "jobs: they differ")]

    monkeypatch.setattr(snapshot, "diagnose", slow)
    browser = open_site()
    for _ in range(2):
        assert "The first check-up is running." in browser.get("/health")
    assert runs.acquire(timeout=30)
    assert not runs.acquire(blocking=False)
    ended.set()
    wait_until(lambda: '/queues/jobs">jobs</a>: they differ' in browser.get("/health"))
    assert 'queue <a href="/queues/jobs">jobs</a>' in browser.page.text
    wait_until(lambda: "check-up is running" not in browser.get("/health"))
    # What is shown while the next one runs says that it is not the last word.
    ended.clear()
    monkeypatch.setattr(SharedSnapshot, "_is_due", lambda _: True)
    assert "A new check-up is running." in browser.get("/health")
    assert "they differ" in browser.text()
    ended.set()


@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb", "h2")
def test_consumers_say_what_they_hold(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each queue how many and since when; a busy queue is not read to its end."""
    one, other = make_service(), make_service()
    for name in ("first", "second"):
        one.create_queue(name).publish_many([1] * 4)
    held = [*one.queue("first").consume(2), *one.queue("second").consume(1)]
    theirs = other.queue("first").consume(1)
    seen = Snapshots(one, interval=0).held()
    assert {one.consumer_id: [("first", 2), ("second", 1)], other.consumer_id: [("first", 1)]} == {
        consumer: [(each.queue, each.count) for each in what] for consumer, what in seen.items()
    }
    assert [held[0].claimed_at, held[2].claimed_at] == [
        each.since for each in seen[str(one.consumer_id)]
    ]
    monkeypatch.setattr(shown_messages, "HELD_LIMIT", 1)
    told = [
        humanize.count(each.count) for each in shown_messages.held_of(one.queue("first")).values()
    ]
    assert {"1+", "2+"} >= set(told)
    one.queue("first").ack([*held[:2]])
    other.queue("first").ack(theirs)
    assert {} == shown_messages.held_of(one.queue("first"))


def test_who_holds_what(service: QueueService, jobs: Queue, open_site: Open) -> None:
    """What each consumer holds leads to the messages, which say who holds them."""
    jobs.consume(2)
    browser = open_site()
    assert 'href="/queues/jobs/messages?status=claimed">2 of jobs</a>' in browser.get("/consumers")
    assert "oldest claimed" in browser.text()
    (consumer,) = service.consumers()
    browser.get("/queues/jobs/messages?status=claimed")
    assert 2 == browser.text().count(f"claimed by {consumer.name}")


@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb", "h2")
@pytest.mark.parametrize("priorities", [1, 3, 100])
def test_an_overview_counts_as_stats_do(make_service: MakeService, priorities: int) -> None:
    """By status and outcome, of queues with levels and of adopted tables; so do exact counts."""
    service = make_service()
    engine = parts_of(service).connections.engine
    jobs = service.create_queue("jobs", archive="all", priorities=priorities, retry=NoRetry())
    for level in range(min(priorities, 3)):
        jobs.publish_many([level] * 4)
        jobs.messages(where=jobs.table.c.priority == 0).prioritize(priority=level)
    jobs.publish("later", delay=3600)
    jobs.ack(jobs.consume(1))
    jobs.consume(1)[0].nack("failed")
    jobs.consume(1)[0].reject("rejected")
    jobs.messages(where=jobs.table.c.id == jobs.messages(status="ready").list(1)[0].id).hold()
    jobs.consume(1)
    create_invoices(engine, 5)
    billing = service.adopt_queue("billing", Invoice)
    billing.enqueue(Invoice.number > 2)
    billing.ack(billing.consume(1))
    snapshots = Snapshots(service)
    seen = snapshots.overview()
    assert seen.problem is None
    for queue in (jobs, billing):
        counted, stats = snapshots.queue(queue.name), queue.stats()
        assert counted is not None
        (listed,) = (each for each in seen.queues if each.name == queue.name)
        assert listed.counts.items() == counted.counts.items() - {("done", stats.done)}
        assert counted.problem is None, counted.problem
        names = ("ready", "delayed", "claimed", "held", "done", "failed", "rejected", "expired")
        assert {name: getattr(stats, name) for name in names} == counted.counts
        assert (stats.oldest_ready_age is None) == (counted.oldest_ready is None)
        exact = counting.count_queues(service)[queue.name]
        assert (exact.oldest_ready_age is None) == (stats.oldest_ready_age is None)
        ageless = (replace(each, oldest_ready_age=None, wal_bytes=None) for each in (exact, stats))
        assert 1 == len(set(ageless))


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("kind", ["levels", "many levels", "adopted"])
def test_a_look_costs_as_much_whatever_there_is(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where most of a queue is looked for in vain, too; what was not looked at is said by a +."""
    monkeypatch.setattr(snapshot, "COUNT_LIMIT", 50)
    service = make_service()
    if kind == "adopted":
        create_invoices(parts_of(service).connections.engine, 400)
        queue: Any = service.adopt_queue("jobs", Invoice)
        fill: Any = lambda count: queue.enqueue(Invoice.number <= count)  # noqa: E731
    else:
        queue = service.create_queue("jobs", priorities=3 if kind == "levels" else 100)
        fill = lambda count: queue.publish_many([1] * count)  # noqa: E731
    fill(100)
    few = steps_of_a_look(service)
    fill(4_000)
    assert steps_of_a_look(service) < 2 * few
    (seen,) = Snapshots(service).overview().queues
    assert "50+" == humanize.count(seen.counts["ready"])
    # Of messages of three levels it is known that none is delayed.
    told = "0" if kind != "many levels" else "0+"
    assert told == humanize.count(seen.counts["delayed"])


def steps_of_a_look(service: QueueService) -> int:
    """How many hundreds of its instructions SQLite runs for one look."""
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    @contextlib.contextmanager
    def counting(_: Any, connection: Connection, __: float) -> Iterator[None]:
        raw: Any = connection.connection.dbapi_connection
        raw.set_progress_handler(count, 100)
        yield
        raw.set_progress_handler(None, 0)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SQLiteCheckup, "bounded", counting)
        overview = Snapshots(service).overview()
    assert overview.problem is None
    return steps[0]
