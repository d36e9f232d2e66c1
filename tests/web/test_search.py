"""One search over all queues, from the header of each page."""

from __future__ import annotations

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from sqlalchemy import Column, Enum, Integer, MetaData, Table, insert, literal_column

from queue_over_sql import NoRetry, Publication
from queue_over_sql.selection import operations as selection
from queue_over_sql.service import parts_of
from queue_over_sql.web import searching
from queue_over_sql.web.app import create_app
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore
from tests.contract.existing_tables.users_tables import Invoice, create_invoices
from tests.waiting import wait_until
from tests.web.browser import Browser
from tests.web.test_engines import FOR_EVER

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


def found(browser: Browser, address: str) -> Counter[tuple[str, int]]:
    """The messages that a search lists, by their queues."""
    links = re.findall(r'class="mono" href="/queues/(\w+)/messages/(\d+)"', browser.get(address))
    return Counter((queue, int(number)) for queue, number in links)


def shop_of(service: QueueService) -> dict[str, tuple[str, int]]:
    """Two queues with live and archived messages; what is to be found, by name."""
    orders = service.create_queue("orders", archive="all", retry=NoRetry(), group_limit=1)
    mails = service.create_queue("mails", payload="text", archive="all")
    first = orders.publish({"city": "Zagreb", "iban": "DE4711"}, key="order-1", group="c7").id
    [message] = orders.consume(1)
    message.nack("the card 100%_sure was declined")
    second = orders.publish({"city": "Split"}, key="order-2", group="c7").id
    mail = mails.publish("Dear Ana, from ZAGREB").id
    return {"dead": ("orders", first), "live": ("orders", second), "mail": ("mails", mail)}


def test_one_search_finds_messages_of_all_queues(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By id, key and group, and by texts of payloads and errors, live and archived."""
    # A busy machine may take longer than an operator is to wait.
    monkeypatch.setattr(searching, "_SECONDS_OF_PLACE", 30.0)
    settings = WebSettings(open_role=Role.VIEWER, longest_read=60)
    service = make_service()
    there = shop_of(service)
    dead, live, mail = there["dead"], there["live"], there["mail"]
    wanted = {
        "order-2": {live},
        "c7": {live},
        "c7&texts=1": {live, dead},
        "order-1": {dead},
        "order-": {live, dead},
        "zagreb": {dead, mail},
        "100%25_SURE": {dead},
        "100_": set(),
        str(live[1]): {each for each in there.values() if each[1] == live[1]},
        "4711": {dead},
        "%C5%BDuti": set(),
    }
    with serving(create_app(service, settings)) as root:
        browser = Browser(root)
        for text, messages in wanted.items():
            assert dict.fromkeys(messages, 1) == found(browser, f"/search?q={text}"), text
        assert "the card 100%_sure was declined" in found_text(browser, "100%25_sure")
        assert "Enter the id" in browser.get("/search")
        # One more than are listed.
        service.queue("orders").publish_many([Publication({}, group="big")] * 21)
        assert 20 == found(browser, "/search?q=big").total()
        assert "orders has more messages with this group" in browser.text()
        browser.get("/queues/orders/messages?order=newest&group=big")
        assert 21 == len(set(re.findall(r"/queues/orders/messages/(\d+)", browser.page.text)))
        browser.get("/search?q=" + "x" * 201, 422)
        browser.get("/search?q=%00", 422)
        browser.get("/search?q=x&queue=none", 404)
        browser.close()
    with serving(create_app(service, WebSettings(open_role=Role.VIEWER, masked=["iban"]))) as root:
        browser = Browser(root)
        assert not found(browser, "/search?q=4711")
        assert {dead: 1, mail: 1} == found(browser, "/search?q=zagreb")
        browser.close()


def test_no_page_of_a_search_tells_what_is_masked(make_service: MakeService) -> None:
    """Not even by where it ends: two queues that differ in masked values alone look the same."""
    service = make_service()
    for name, hidden in (("aaa", "DE4711"), ("bbb", "DE0000")):
        queue = service.create_queue(name)
        # More than a page that match by what is hidden, between more than a page that match.
        queue.publish_many(
            [{"iban": hidden} if n % 3 else {"city": "4711", "iban": hidden} for n in range(90)]
        )
    with serving(create_app(service, WebSettings(open_role=Role.VIEWER, masked=["iban"]))) as root:
        browser, seen = Browser(root), Counter[tuple[str, int]]()
        addresses = {name: f"/search?q=4711&queue={name}" for name in ("aaa", "bbb")}
        while addresses:
            pages = {}
            for name, address in addresses.items():
                seen += found(browser, address)
                text = browser.page.text.replace(name, "NAME")
                pages[name] = re.sub(r"<time .*?</time>", "", text)
            assert pages["aaa"] == pages["bbb"]
            more = re.search(r'href="(/search\?q=4711&amp;queue=[^"]*)"', pages["aaa"])
            following = more[1].replace("&amp;", "&") if more else ""
            addresses = {name: following.replace("NAME", name) for name in addresses if following}
        assert [1] * 60 == list(seen.values())
        browser.close()


def found_text(browser: Browser, text: str) -> str:
    """What the page of a search says."""
    browser.get(f"/search?q={text}")
    return browser.text()


def test_rows_of_a_table_are_shown_filtered_and_found(make_service: MakeService) -> None:
    """An adopted table has its columns in lists, on the message, in filters and in the search."""
    service = make_service()
    create_invoices(parts_of(service).connections.engine, 3)
    invoices = service.adopt_queue("billing", Invoice)
    invoices.enqueue(Invoice.number > 0)
    invoices.ack(invoices.consume(1))
    # On PostgreSQL no function of texts accepts an enum.
    state: Column[str] = Column("state", Enum("new", "sent", name="state_of_parcel"))
    table = Table("parcels", MetaData(), Column("id", Integer, primary_key=True), state)
    with parts_of(service).connections.engine.begin() as connection:
        table.create(connection)
        connection.execute(insert(table), [{"id": 1, "state": "sent"}, {"id": 2, "state": "new"}])
    parcels = service.adopt_queue("parcels", table)
    parcels.enqueue(parcels.table.c.id > 0)
    filters = {
        "column=company_id&is=2": {3},
        "column=title&is=no 2": {2},
        "column=total&is=9.50": {2, 3},
        "column=paid&is=false": {2, 3},
        "column=due_on&is=2026-02-03": set(),
        "column=issued_at&is=2026-02-03T04:05:06Z": set(),
        "column=reference&is=12345678-1234-5678-1234-567812345678": set(),
        "column=ratio&is=0.5": set(),
        "column=ratio": {2, 3},
    }
    refused = {
        "column=company_id&is=two": "cannot be &#39;two&#39;",
        "column=company_id&is=" + "9" * 30: "cannot be",
        "column=scan&is=x": "cannot be searched",
        "column=none&is=1": "has no column",
        "is=1": "Choose the column",
        "key=1": "filter by its columns instead",
    }
    with serving(create_app(service, WebSettings(open_role=Role.ADMIN, masked=["total"]))) as root:
        browser = Browser(root)
        listed = f"/queues/{invoices.name}/messages"
        browser.get(listed)
        assert "no 2" in browser.text()
        assert "company_id" in browser.text()
        browser.get(f"{listed}/1")
        assert "title no 1 total ••• ratio \N{EN DASH}" in browser.text()
        assert "Payload" not in browser.text()
        for query, numbers in filters.items():
            if "total" in query:
                browser.get(f"{listed}?{query}", 422)
            else:
                wanted = {(invoices.name, number): 1 for number in numbers}
                assert wanted == found(browser, f"{listed}?{query}"), query
        for query, why in refused.items():
            assert why in browser.get(f"{listed}?{query}", 422), query
        assert {(invoices.name, 1): 1} == found(browser, "/search?q=NO+1")
        assert {(parcels.name, 1): 1} == found(browser, "/search?q=sen")
        browser.get(f"/queues/{parcels.name}/messages")
        assert "state" in browser.text()
        browser.get(f"/queues/{parcels.name}/messages/1")
        assert "state sent" in browser.text()
        # All that match by a column are changed, and no others.
        csrf = browser.get(listed).split('name="csrf" value="')[1].split('"')[0]
        every: dict[str, Any] = {"queue": invoices.name, "all": "1", "csrf": csrf, "is": "1"}
        browser.post("/do/hold", **every, column="company_id")
        assert "company_id is 1" in browser.text()
        browser.press("Hold")
        browser.get("/audit")
        assert "column company_id=1" in browser.text()
        browser.close()
    assert 1 == invoices.stats().held


def test_a_search_goes_on_where_it_stopped(make_service: MakeService) -> None:
    """A page has at most twenty of each place; the next one has the rest, and none twice."""
    service = make_service()
    jobs = service.create_queue("jobs")
    jobs.publish_many([{"city": "Zagreb"} for _ in range(50)])
    with serving(create_app(service, WebSettings(open_role=Role.VIEWER))) as root:
        browser, seen = Browser(root), Counter[tuple[str, int]]()
        address = "/search?q=zagreb"
        browser.get(address)
        assert "20+ messages with" in browser.text()
        while address:
            seen += found(browser, address)
            more = re.search(r'href="(/search\?q=zagreb&amp;queue=[^"]*)"', browser.page.text)
            address = more[1].replace("&amp;", "&") if more else ""
        assert [1] * 50 == list(seen.values())
        browser.close()


def test_a_search_says_what_it_had_no_time_for(
    make_service: MakeService, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what it found, and where it may go on; the database stops with it."""
    service = make_service()
    service.create_queue("jobs").publish({"city": "Zagreb"})
    settings = WebSettings(open_role=Role.VIEWER, longest_read=0.3)
    with serving(create_app(service, settings)) as root:
        browser = Browser(root)
        with monkeypatch.context() as patched:
            slow: list[Any] = [literal_column(FOR_EVER[database.engine])]
            patched.setattr(selection, "extent_of", lambda *_: slow)
            browser.get("/search?q=zagreb")
            assert "There may be more. Go on with the search in: jobs" in browser.text()
        # A busy machine may need more than that time for a search, too.
        wait_until(lambda: {("jobs", 1): 1} == found(browser, "/search?q=zagreb"))
        browser.close()


@pytest.mark.engines("sqlite")
def test_few_searches_run_at_once(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of a user and four of all; others are told to wait, and no page waits for them."""
    service = make_service()
    service.create_queue("jobs")
    settings = WebSettings(threads=8)
    store = WebStore(service, settings)
    store.prepare()
    tokens = {role: store.add_token(role.value, role)[0] for role in Role}
    go_on, running = threading.Event(), threading.Semaphore(0)
    search = searching.search

    def slowly(*given: Any, **more: Any) -> Any:
        running.release()
        assert go_on.wait(60)
        return search(*given, **more)

    monkeypatch.setattr(searching, "search", slowly)
    roles = [Role.VIEWER, Role.OPERATOR]
    with serving(create_app(service, settings)) as root:

        def ask(path: str, role: Role) -> httpx2.Response:
            headers = {"authorization": f"Bearer {tokens[role]}"}
            return httpx2.get(f"{root}{path}", headers=headers, timeout=60, trust_env=False)

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, "/search?q=x", role) for role in roles for _ in range(2)]
            try:
                for _ in asked:
                    assert running.acquire(timeout=30)
                for role in (*roles, Role.ADMIN):
                    answer = ask("/search?q=x", role)
                    assert (429, "3") == (answer.status_code, answer.headers["retry-after"])
                    assert "try again" in answer.text
                    assert 429 == ask("/queues/jobs/messages?field=a&value=1", role).status_code
                    answer = ask('/api/v1/queues/jobs/messages?payload={"a":1}', role)
                    assert (429, "/problems/busy") == (answer.status_code, answer.json()["type"])
                    assert 200 == ask("/", role).status_code
            finally:
                go_on.set()
            assert [200] * 4 == [each.result().status_code for each in asked]
        assert 200 == ask("/search?q=x", Role.VIEWER).status_code
