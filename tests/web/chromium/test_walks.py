"""Walks through the dashboard, by mouse and by keyboard."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import Page, expect

from queue_over_sql import Queue, QueueService
from queue_over_sql.web.buttons import BUTTONS
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore
from tests.chaos.processes import Process
from tests.chaos.roles import consumer
from tests.web.chromium.shop import fill

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase
    from tests.web.chromium.conftest import Open, Serve, Window

pytestmark = [
    pytest.mark.browser,
    pytest.mark.engines("sqlite", "postgresql"),
    pytest.mark.default_on("sqlite"),
]


@pytest.fixture
def shop(database: TestDatabase) -> Iterator[QueueService]:
    """A service of the shop, whose queues are filled."""
    fill(database.url)
    with QueueService(database.url) as service:
        yield service


@pytest.fixture
def root(shop: QueueService, database: TestDatabase, serve: Serve) -> str:
    """Where the shop is shown."""
    del shop
    return serve(database.url)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_each_action(shop: QueueService, root: str, open_window: Open, *, scripts: bool) -> None:
    """All that can be done on the pages is done by clicks, each after its question or with undo."""
    window = open_window(root, scripts=scripts)
    for walk in (_dead_letters, _archive, _messages, _message, _queue, _groups, _system, _tokens):
        walk(window, shop)
    window.go("/audit")
    done = set(window.page.locator("tbody td:nth-child(3)").all_inner_texts())
    assert {operation.name for operation, _ in BUTTONS.values()} == done - {"sign-in"}


def _dead_letters(window: Window, shop: QueueService) -> None:
    orders = shop.queue("orders")
    page = window.go("/")
    # From the first page to a dead letter that is sent again: three clicks.
    window.row("orders").get_by_role("link", name="12", exact=True).click()
    window.press("Requeue one", window.row("card declined"))
    window.says("Requeue 1 message?")
    assert 10 == orders.stats().failed
    window.press("Requeue")
    window.says("Requeued 1 message.")
    assert 9 == orders.stats().failed
    window.press("Requeue these 6")
    window.says("Requeue 6 messages?")
    window.press("Requeue")
    window.says("Requeued 6 messages.")
    window.press("Remove these 3", window.row("card declined"))
    window.says("Permanently remove 3 messages from the archive?")
    window.press("Remove")
    window.says("Removed 3 messages from the archive.")
    assert 0 == orders.stats().failed
    assert 2 == orders.stats().rejected
    expect(page.get_by_role("row").filter(has_text="placed twice")).to_be_visible()


def _archive(window: Window, shop: QueueService) -> None:
    page = window.go("/queues/orders/archive")
    page.get_by_label("Status").select_option("rejected")
    window.press("Search", page.locator("#main"))
    expect(page).to_have_url(re.compile("status=rejected"))
    window.press("Requeue", page.get_by_role("group", name="With all that match"))
    window.says("Requeue 2 messages?")
    window.press("Requeue")
    window.says("Requeued 2 messages.")
    window.says("No archived message matches.")
    assert 0 == shop.queue("orders").stats().rejected


def _messages(window: Window, shop: QueueService) -> None:
    orders = shop.queue("orders")
    chosen = "With the chosen messages"
    page = window.go("/queues/orders/messages?status=ready")
    _choose(page, 2)
    window.press("Hold", page.get_by_role("group", name=chosen))
    window.says("Held 2 messages.")
    assert 5 == orders.stats().held
    window.press("Undo")
    window.says("Released from hold 2 messages.")
    window.press("Hold", page.get_by_role("group", name="With all that match"))
    window.says(f"Hold {orders.stats().ready} messages?")
    window.follow("Back")
    assert 3 == orders.stats().held
    for button, question, answer in (
        ("Move to the front", "Move 1 message before", "Moved to the front 1 message."),
        ("Cancel", "Cancel 1 message?", "Cancelled 1 message."),
        ("Remove", "Permanently remove 1 message?", "Removed 1 message."),
    ):
        _choose(page, 1)
        window.press(button, page.get_by_role("group", name=chosen))
        window.says(question)
        window.press(button)
        window.says(answer)
    window.go("/queues/orders/messages?status=delayed")
    _choose(page, 4)
    window.press("Make due now", page.get_by_role("group", name=chosen))
    window.press("Make due now")
    window.says("Made due 4 messages.")
    assert 0 == orders.stats().delayed


def _choose(page: Page, count: int) -> None:
    for box in page.locator("input[name=id]").all()[:count]:
        box.check()


def _message(window: Window, shop: QueueService) -> None:
    (message,) = shop.queue("orders").messages(key="order-50001").list()
    page = window.go("/queues/orders/messages?key=order-50001")
    window.follow(str(message.id))
    window.says('"trace": "4bf92f35"')
    window.press("Hold")
    window.says("Held: not delivered")
    window.press("Release from hold")
    expect(page.locator(".head .tag")).to_have_text("ready")
    page.get_by_text("Change attempts or delay").click()
    page.get_by_label("Attempts in all").fill("9")
    window.press("Change")
    window.says("1 message may be tried 9 times in all.")
    window.press("Undo")
    window.says(f"1 message may be tried {message.max_attempts} times in all.")
    page.get_by_text("Change attempts or delay").click()
    page.get_by_label("Delay, such as 10m").fill("10m")
    window.press("Delay")
    window.says("1 message will be due in 10 min.")
    window.press("Remove")
    window.press("Remove")
    window.says("Removed 1 message.")
    assert not shop.queue("orders").messages(key="order-50001").list()
    _mend(window, shop.queue("orders"))


def _mend(window: Window, orders: Queue) -> None:
    """From the dead letter to the question that shows the difference: two clicks."""
    broken = orders.publish({"n": 1}).id
    assert orders.cancel(broken)
    page = window.go(f"/queues/orders/messages/{broken}")
    page.get_by_label("Payload").fill('{"n": 2}')
    window.press("Requeue with this payload")
    window.says('+  "n": 2')
    window.press("Requeue with this payload")
    window.says("Requeued 1 message with another payload.")
    assert 1 == orders.messages(payload={"n": 2}).remove()


def _queue(window: Window, shop: QueueService) -> None:
    page = window.go("/queues/emails")
    window.press("Pause")
    window.says("Paused emails.")
    assert shop.queue("emails").stats().paused
    window.press("Resume")
    window.says("Resumed emails.")
    page.get_by_label("Attempts").fill("9")
    window.press("Change")
    window.says("Changed emails: max_attempts 9.")
    window.press("Undo")
    window.says("Changed emails: max_attempts 5.")
    window.press("Purge")
    window.says("Permanently remove 7 messages from emails?")
    window.press("Purge")
    window.says("Removed 7 messages of emails.")
    window.press("Drop")
    page.get_by_label("Type emails to confirm").fill("email")
    window.press("Drop")
    window.says("The name does not match.")
    page.get_by_label("Type emails to confirm").fill("emails")
    window.press("Drop")
    window.says("Dropped emails.")
    assert "emails" not in {queue.name for queue in shop.queues()}


def _groups(window: Window, shop: QueueService) -> None:
    lines = shop.create_queue("lines", group_limit=1, block_on_failure=True)
    for name in ("a", "a", "b"):
        lines.publish({}, group=name)
    lines.consume(1)[0].reject("no")
    page = window.go("/queues/lines/groups")
    window.press("Unblock", window.row("dead letter"))
    window.says("Deliver the messages behind the dead letter of group a?")
    window.press("Unblock")
    window.says("Unblocked group a.")
    window.press("Pause", window.row("b"))
    window.says("Paused group b.")
    window.press("Resume", window.row("b"))
    window.says("Resumed group b.")
    page.get_by_label("Limit of this group").first.fill("4")
    window.press(
        "Change", page.locator("form").filter(has=page.get_by_label("Limit of this")).first
    )
    window.says("has the limit 4.")
    shop.drop_queue("lines")


def _system(window: Window, shop: QueueService) -> None:
    page = window.go("/schedules")
    window.press("Pause", window.row("nightly_report"))
    window.says("Paused the schedule nightly_report.")
    window.press("Undo")
    window.says("Resumed the schedule nightly_report.")
    window.press("Run now", window.row("nightly_report"))
    window.says("Publish one message of nightly_report now?")
    window.press("Run now")
    window.says("Ran the schedule nightly_report. It published message")
    window.go("/topics")
    page.get_by_label("Where would this routing key lead?").fill("order.paid")
    window.press("Try")
    expect(window.row("order.*")).to_contain_text("yes")
    window.go("/consumers")
    window.press("Release", window.row("warehouse"))
    window.says("It can then no longer settle them.")
    window.press("Release")
    window.says("Released 0 messages of warehouse.")
    del shop


def _tokens(window: Window, shop: QueueService) -> None:
    page = window.go("/tokens")
    page.get_by_label("Person or program").fill("ada")
    page.get_by_label("Role").select_option("admin")
    window.press("Add")
    window.says("it is shown only this once")
    token = page.locator("main code").inner_text()
    window.go("/tokens")
    page.get_by_label("Token").fill(token)
    window.press("Sign in")
    expect(page.locator("main")).not_to_contain_text(token)
    window.press("Remove", window.row("ada"))
    window.says("Remove the token of ada?")
    window.press("Remove")
    window.says("The token of ada is the last one of an admin.")
    window.press("Remove")
    window.says("Until there is one, everybody on this machine may do everything.")
    del shop


# Where pictures of the pages are written.
_PICTURES: Final = os.environ.get("QUEUE_OVER_SQL_TEST_PICTURES")
_MOST_CLICKS: Final = 4


def test_ten_jobs(shop: QueueService, root: str, open_window: Open) -> None:
    """Each job of an engineer on call is done in at most four clicks from the first page."""
    window = open_window(root)
    jobs = (
        _why_orders_fail,
        _redrive_one_error,
        _stop_the_deliveries,
        _find_one_customer,
        _does_it_keep_up,
        _who_holds_it,
        _mend_a_payload,
        _allow_more_attempts,
        _last_run_and_run_now,
        _who_did_what,
    )
    for number, job in enumerate(jobs, 1):
        window.go("/")
        window.clicks = 0
        job(window, shop)
        assert window.clicks <= _MOST_CLICKS, job.__name__
        if _PICTURES:
            name = f"{number:02}{job.__name__}.png"
            window.page.screenshot(path=Path(_PICTURES) / name, full_page=True)


def _search(window: Window, text: str) -> None:
    field = window.page.get_by_role("searchbox", name="Search all queues")
    field.fill(text)
    field.press("Enter")
    window.clicks += 1


def _open_the_newest(window: Window, row: str) -> None:
    window.row(row).get_by_role("link", name=re.compile("^message ")).first.click()
    window.clicks += 1


def _why_orders_fail(window: Window, shop: QueueService) -> None:
    window.follow("12", window.row("orders"))
    window.says("card declined by the bank")
    _open_the_newest(window, "no stock for article 7781")
    window.says("shop/orders.py")
    expect(window.page.locator("#attempts")).to_contain_text("no stock for article 7781")
    del shop


def _redrive_one_error(window: Window, shop: QueueService) -> None:
    window.follow("12", window.row("orders"))
    window.press("Requeue these 4", window.row("card declined"))
    window.press("Requeue")
    window.says("Requeued 4 messages.")
    assert 6 == shop.queue("orders").stats().failed


def _stop_the_deliveries(window: Window, shop: QueueService) -> None:
    window.follow("emails", window.row("emails"))
    window.press("Pause")
    window.says("Paused emails.")
    assert shop.queue("emails").stats().paused


def _find_one_customer(window: Window, shop: QueueService) -> None:
    [message] = shop.queue("orders").messages(key="order-50001").list()
    _search(window, "order-50001")
    window.follow(str(message.id), window.row("order-50001"))
    window.says('"trace": "4bf92f35"')


def _does_it_keep_up(window: Window, shop: QueueService) -> None:
    window.follow("orders", window.row("orders"))
    window.says("a minute")
    del shop


def _who_holds_it(window: Window, shop: QueueService) -> None:
    [message] = shop.queue("exports").consume()
    _search(window, str(message.id))
    window.follow(str(message.id), window.row("exports"))
    window.says(f"process {os.getpid()} on")
    message.ack()


def _mend_a_payload(window: Window, shop: QueueService) -> None:
    window.follow("8", window.row("orders"))
    _open_the_newest(window, "no stock for article 7781")
    window.page.get_by_label("Payload").fill('{"order": 1}')
    window.press("Requeue with this payload")
    window.press("Requeue with this payload")
    window.says("with another payload")
    del shop


def _allow_more_attempts(window: Window, shop: QueueService) -> None:
    [message] = shop.queue("orders").messages(key="order-50001").list()
    _search(window, "order-50001")
    window.follow(str(message.id), window.row("order-50001"))
    window.page.get_by_text("Change attempts or delay").click()
    window.clicks += 1
    window.page.get_by_label("Attempts in all").fill("9")
    window.press("Change")
    window.says("1 message may be tried 9 times in all.")


def _last_run_and_run_now(window: Window, shop: QueueService) -> None:
    window.follow("Schedules")
    window.press("Run now", window.row("nightly_report"))
    window.says("Publish one message of nightly_report now?")
    window.press("Run now")
    window.says("Ran the schedule nightly_report. It published message")
    _open_the_newest(window, "nightly_report")
    del shop


def _who_did_what(window: Window, shop: QueueService) -> None:
    window.follow("Audit")
    window.page.get_by_label("What").select_option("pause")
    window.press("Filter")
    window.says("emails")
    del shop


def test_two_look_and_one_acts(shop: QueueService, root: str, open_window: Open) -> None:
    """Whoever looks sees what another did, without opening the page again."""
    looking, acting = open_window(root), open_window(root)
    looking.go("/")
    expect(looking.page.locator("[data-live]")).to_have_text("Live")
    looking.page.evaluate("window.opened = 'once'")
    acting.go("/queues/thumbnails")
    acting.press("Pause")
    expect(looking.row("thumbnails")).to_contain_text("paused")
    # What somebody is at is left alone until they leave it.
    looking.page.get_by_role("link", name="orders").focus()
    acting.press("Resume")
    looking.page.get_by_role("link", name="Health").focus()
    expect(looking.row("thumbnails")).not_to_contain_text("paused")
    assert "once" == looking.page.evaluate("window.opened")
    del shop


def test_updates_are_paused(shop: QueueService, root: str, open_window: Open) -> None:
    """On every live page of this visit, until it is ended; then they come as often as chosen."""
    window = open_window(root)
    page = window.go("/")
    state = page.locator("[data-live]")
    expect(state).to_have_text("Live")
    window.press("Pause updates")
    expect(state).to_have_text("Paused")
    page.evaluate("document.addEventListener('htmx:afterRequest', () => { window.asked = true })")
    shop.queue("thumbnails").pause()
    other = open_window(root)
    other.go("/")
    expect(other.row("thumbnails")).to_contain_text("paused")
    expect(page.get_by_role("row").filter(has_text="thumbnails")).not_to_contain_text("paused")
    assert not page.evaluate("window.asked")
    window.go("/consumers")
    expect(state).to_have_text("Paused")
    window.go("/")
    shop.queue("thumbnails").resume()
    window.press("Resume updates")
    expect(state).to_have_text("Live")
    expect(window.row("thumbnails")).not_to_contain_text("paused")
    # How often they come is chosen, for all pages of this visit, too.
    with page.expect_request("**/events?every=15"):
        page.get_by_label("Updates").select_option("15")
    with page.expect_request("**/events?every=15"):
        window.go("/consumers")
    expect(page.get_by_label("Updates")).to_have_value("15")


def test_a_page_says_how_old_it_is(shop: QueueService, root: str, open_window: Open) -> None:
    """Live below 5 s, then the age, in amber from 10 s on; and that counting takes long."""
    assert shop.queues()
    window = open_window(root)
    window.page.add_init_script(
        "window.EventSource = class { heard = {}; constructor() { window.source = this; }"
        " addEventListener(name, hear) { this.heard[name] = hear; } close() {} };"
    )
    page = window.go("/")
    live = page.locator("[data-live]")
    why = ", counted every 40 s because that takes long"
    for told, text, amber in (
        ("3 0", "Live", False),
        ("12 0", "12 s old", True),
        ("7 0", "7 s old", False),
        ("31 40", f"31 s old{why}", True),
    ):
        page.evaluate("data => source.heard.age({ data })", told)
        expect(live).to_have_text(text)
        assert amber == ("old" in (live.get_attribute("class") or "").split())


def test_filters_are_folded_on_a_phone(shop: QueueService, root: str, open_window: Open) -> None:
    """They open at a tap, and are open where one is in use; on a desktop they are always open."""
    assert shop.queues()
    phone = open_window(root, viewport={"width": 390, "height": 844})
    page = phone.go("/queues/orders/messages")
    filters = page.locator("form.filters")
    expect(filters).to_be_hidden()
    page.get_by_text("Filters and order").click()
    expect(filters).to_be_visible()
    expect(phone.go("/queues/orders/messages?status=ready").locator("form.filters")).to_be_visible()
    desktop = open_window(root)
    expect(desktop.go("/queues/orders/messages").locator("form.filters")).to_be_visible()


def test_texts_are_copied(shop: QueueService, root: str, open_window: Open) -> None:
    """As the page shows them; without scripts there is no button that does nothing."""
    (dead, *_) = shop.queue("orders").archive.messages(status="failed").list(1)
    path = f"/queues/orders/messages/{dead.id}"
    window = open_window(root, permissions=["clipboard-read", "clipboard-write"])
    page = window.go(path)
    for what, begins in (("id", str(dead.id)), ("error", "LookupError: no"), ("payload", "{\n")):
        window.press(f"Copy {what}")
        expect(page.get_by_role("status")).to_have_text(f"Copied {what}")
        assert page.evaluate("navigator.clipboard.readText()").startswith(begins)
        expect(page.get_by_role("button", name=f"Copy {what}")).to_be_visible()
    plain = open_window(root, scripts=False).go(path)
    expect(plain.locator("[data-copy]").first).to_be_hidden()


def test_a_worker_is_killed(
    shop: QueueService, database: TestDatabase, root: str, open_window: Open, tmp_path: Path
) -> None:
    """Whoever looks at the consumers sees it go, and what it held comes back."""
    (tmp_path / "journal").mkdir()
    arguments = consumer.Arguments(
        database.url, str(tmp_path / "journal"), queue="thumbnails", consumer_timeout=2.0
    )
    window = open_window(root)
    page = window.go("/consumers")
    with contextlib.closing(Process(arguments, tmp_path / "worker.log")) as worker:
        worker.expect("ready")
        row = page.get_by_role("row").filter(has=page.get_by_text(str(worker.pid), exact=True))
        expect(row).to_contain_text("alive")
        worker.kill()
        expect(row.filter(has_text="alive")).to_have_count(0)
    del shop


def test_by_keys_alone(shop: QueueService, root: str, open_window: Open) -> None:
    """Every control is reached in its order, can be seen to have the focus, and works."""
    window = open_window(root, viewport={"width": 1280, "height": 720})
    page = window.go("/")
    page.keyboard.press("Tab")
    assert "Skip to the content" == _focused(page)
    page.keyboard.press("Enter")
    _tab_to(page, "12")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/orders/dead")
    _tab_to(page, "Requeue these 6")
    page.keyboard.press("Enter")
    window.says("Requeue 6 messages?")
    _tab_to(page, "Requeue")
    page.keyboard.press("Space")
    window.says("Requeued 6 messages.")
    assert 4 == shop.queue("orders").stats().failed
    window.go("/queues/orders/messages")
    _tab_to(page, "Choose all on this page")
    page.keyboard.press("Space")
    expect(page.locator("input[name=id]:not(:checked)")).to_have_count(0)


_SEEN = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const inside = box.width > 0 && box.bottom > 0 && box.right > 0
    && box.top < innerHeight && box.left < innerWidth;
  const name = at.getAttribute('aria-label') || at.innerText || at.name || at.tagName;
  const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  return {name, seen: inside && shown};
}"""


def _focused(page: Page) -> str:
    """What has the focus, which must be seen."""
    found = page.evaluate(_SEEN)
    assert found["seen"], f"{found['name']} has the focus, and nobody sees it"
    return str(found["name"])


def _tab_to(page: Page, name: str) -> None:
    # Until its style sheet is there, a page shows its text, but nothing has its place and outline.
    page.wait_for_load_state()
    passed: list[str] = []
    while not passed or passed[-1] != name:
        page.keyboard.press("Tab")
        passed.append(_focused(page))
        assert len(passed) < 100, passed


def test_sessions(
    shop: QueueService, database: TestDatabase, serve: Serve, open_window: Open
) -> None:
    """A visitor signs in, sees what the role allows, and is asked again when the session ends."""
    store = WebStore(shop, WebSettings())
    store.prepare()
    tokens = {role: store.add_token(role.value, role)[0] for role in Role}
    root = serve(database.url)
    window, plain = open_window(root), open_window(root, scripts=False)
    for each, role in ((window, Role.VIEWER), (plain, Role.OPERATOR)):
        page = each.go("/queues/orders?span=day")
        each.says("Sign in")
        page.get_by_label("Token").fill("qos_wrong")
        each.press("Sign in")
        each.says("There is no such token")
        page.get_by_label("Token").fill(tokens[role])
        each.press("Sign in")
        expect(page).to_have_url(f"{root}/queues/orders?span=day")
        each.says(f"{role.value}, {role.value}")
        (cookie,) = page.context.cookies()
        assert cookie["httpOnly"] is True
        assert "Lax" == cookie["sameSite"]
    # To find, to pause the updates and to sign out.
    assert 3 == window.page.locator("header, main").get_by_role("button").count()
    expect(plain.page.get_by_role("button", name="Pause")).to_be_visible()
    expect(plain.page.get_by_role("button", name="Drop")).to_have_count(0)
    plain.press("Sign out")
    plain.says("Sign in")
    # The session ends with its token, also below the eyes of somebody who does nothing.
    window.go("/")
    expect(window.page.locator("[data-live]")).to_have_text("Live")
    store.remove_token("viewer")
    window.page.wait_for_url("**/sign-in?back=%2F")
    window.go("/consumers")
    window.says("Sign in")
