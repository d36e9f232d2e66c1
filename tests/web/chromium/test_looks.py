"""The look of pages: in both themes, at all widths, without scripts, with hostile content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.sync_api import expect

from queue_over_sql import Publication, QueueService
from tests.web.chromium.pictures import take_picture
from tests.web.chromium.shop import HOSTILE, LARGE_NUMBER, LONG_NAME, fill, fill_hostile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web.chromium.conftest import Open, Serve, Window

pytestmark = pytest.mark.browser

WIDTHS: Final = (390, 768, 1280, 1920)
PAGES: Final = {
    "overview": "/",
    "queue": "/queues/orders",
    "paused": "/queues/invoices",
    "idle": "/queues/thumbnails?span=week",
    "messages": "/queues/orders/messages",
    "no messages": "/queues/thumbnails/messages?status=held",
    "message": "/queues/orders/messages/35",
    "live message": "/queues/orders/messages/91",
    "groups": "/queues/parcels/groups",
    "dead letters": "/dead",
    "dead letters of one": "/queues/orders/dead",
    "no dead letters": "/queues/exports/dead",
    "archive": "/queues/orders/archive",
    "consumers": "/consumers",
    "schedules": "/schedules",
    "topics": "/topics?key=order.paid",
    "health": "/health",
    "audit": "/audit",
    "search": "/search?q=order",
    "tokens": "/tokens",
    "sign in": "/sign-in",
    "refused": "/queues/none",
}
PICTURES: Final = ("overview", "queue", "dead letters of one", "message")
"""The pages that the documentation shows."""
_PICTURES: Final = os.environ.get("QUEUE_OVER_SQL_TEST_PICTURES")


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[str]:
    """The URL of the shop, where one worker is at work."""
    fill(sqlite_url)
    with QueueService(sqlite_url, consumer_name="worker-1") as worker:
        worker.queue("orders").consume(2)
        worker.queue("emails").consume(1)
        _fill_parcels(worker)
        yield sqlite_url


def _fill_parcels(service: QueueService) -> None:
    """Groups, one of them behind a dead letter, and a schedule whose words are all long."""
    parcels = service.create_queue("parcels", group_limit=1, block_on_failure=True)
    parcels.publish_many(Publication(n, group=f"customer-{n % 9:020}") for n in range(20))
    parcels.consume(1)[0].reject("address not found")
    service.schedules.add(
        "month_end_closing_of_all_the_ledgers",
        "invoices",
        {},
        cron="0 4 1 * *",
        timezone="America/Argentina/Buenos_Aires",
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page(shop: str, serve: Serve, open_window: Open, axe: str, theme: str) -> None:
    """No page or table asks for more width than there is, and axe finds nothing serious."""
    window = open_window(serve(shop), color_scheme=theme)
    _change_something(window)
    judged = 1280 if theme == "light" else 390
    wrong = []
    for name, path in PAGES.items():
        page = window.go(path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            wrong += [f"{name}, {width}: {each}" for each in _too_wide(window)]
            if width == judged:
                wrong += [f"{name}, {width}: {each}" for each in _findings(window, axe)]
            if _PICTURES and theme == "light" and width == 1280 and name in PICTURES:
                file = f"{name.replace(' ', '-').removesuffix('-of-one')}.png"
                take_picture(page, Path(_PICTURES) / file)
    window.go("/queues/orders")
    window.press("Drop")
    wrong += [f"question: {each}" for each in _findings(window, axe)]
    assert [] == wrong


def _change_something(window: Window) -> None:
    window.go("/queues/exports")
    window.press("Pause")
    window.press("Undo")
    window.says("Resumed exports.")


_TOO_WIDE: Final = """() => {
  const wider = (each) => each.scrollWidth > each.clientWidth;
  const tables = [...document.querySelectorAll('.scroll')].filter(wider);
  const found = tables.map((each) => `the table ${each.ariaLabel} scrolls sideways`);
  if (wider(document.scrollingElement)) found.push('the page scrolls sideways');
  const tabs = [...document.querySelectorAll('nav.tabs a')].map((each) => each.offsetTop);
  if (new Set(tabs).size > 1) found.push('the tabs need more than one line');
  return found;
}"""


def _too_wide(window: Window) -> list[str]:
    found: list[str] = window.page.evaluate(_TOO_WIDE)
    return found


def _findings(window: Window, axe: str) -> list[str]:
    page = window.page
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(axe)
    found: dict[str, Any] = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{each['id']} ({each['impact']}): {node['html'][:160]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"][:3]
    ]


def test_without_scripts(shop: str, serve: Serve, open_window: Open) -> None:
    """Each page is there, and offers nothing that would need a script."""
    window = open_window(serve(shop), scripts=False)
    for path in PAGES.values():
        page = window.go(path)
        for each in page.locator("[data-all], [data-copy], [data-every], [data-pause]").all():
            expect(each).not_to_be_visible()
        assert not _without_name(window), path


def _without_name(window: Window) -> int:
    return window.page.get_by_role("button", name="", exact=True).count()


def test_hostile_content(sqlite_url: str, serve: Serve, open_window: Open) -> None:
    """What a message says is shown and never obeyed, and breaks no page, however long it is."""
    ids = fill_hostile(sqlite_url)
    window = open_window(serve(sqlite_url, "--title", HOSTILE[0]))
    root = f"/queues/{LONG_NAME}"
    lists = ["/", "/dead", root, f"{root}/messages", f"{root}/archive", f"{root}/dead"]
    search = f"{root}/messages?key=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    others = [
        "/queues/numbers/messages",
        "/consumers",
        "/health",
        search,
        "/topics?key=%3Cscript%3Ealert(1)%3C/script%3E",
    ]
    for path in [*lists, *others, *(f"{root}/messages/{each}" for each in ids)]:
        page = window.go(path)
        assert "ran" != page.title()
        assert 0 == page.locator("img, iframe, a[href^='javascript' i]").count(), path
        assert len(page.content()) < 1_000_000, path
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert [] == _too_wide(window), (path, width)
        said = page.locator("body").inner_text()
        assert not any(each in said for each in "\u202e\u2066\x1b\x07\x9b"), path
    window.go(f"{root}/archive")
    for text in HOSTILE[:4]:
        window.says(text)
    window.says("\\u202egnp.exe")
    window.go("/queues/numbers/messages")
    window.follow("1")
    window.says(f'"n": {LARGE_NUMBER}')
    window.go(f"{root}/dead")
    window.press("Remove", window.row("<script>").first)
    window.says("Permanently remove 1 message from the archive?")
    window.press("Remove")
    window.says("Removed 1 message from the archive.")
