"""A real server, and Chromium to look at it.

Chromium is on the PATH, or named by ``QUEUE_OVER_SQL_TEST_CHROMIUM``. axe-core, which judges how
accessible a page is, is in the cache, or named by ``QUEUE_OVER_SQL_TEST_AXE``. ``./scripts/test``
gets both.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, expect, sync_playwright

from tests.waiting import eventually

Serve = Callable[..., str]
Open = Callable[..., "Window"]

_NAMES: Final = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
_TIMEOUT: Final = 60_000
# What a page that is refused, on purpose, has the browser say.
_REFUSED: Final = "Failed to load resource: the server responded with a status of"


@dataclasses.dataclass
class Window:
    """A window of a browser, which notes all that its pages should not do."""

    page: Page
    root: str
    complaints: list[str]
    clicks: int = 0

    def go(self, path: str) -> Page:
        """Open a page, and insist on its heading."""
        self.page.goto(self.root + path)
        expect(self.page.locator("h1")).to_have_count(1)
        return self.page

    def press(self, button: str, within: Locator | None = None) -> None:
        """Click the button of this name."""
        self.clicks += 1
        (within or self.page).get_by_role("button", name=button, exact=True).click()

    def follow(self, link: str, within: Locator | None = None) -> None:
        """Click the link of this name."""
        self.clicks += 1
        (within or self.page).get_by_role("link", name=link, exact=True).click()

    def row(self, text: str) -> Locator:
        """The row of a table that has this text."""
        return self.page.get_by_role("row").filter(has_text=text)

    def says(self, text: str) -> None:
        """Wait until the page says so."""
        expect(self.page.locator("body")).to_contain_text(text)


def chromium_program() -> str:
    """Where Chromium is; without it the tests fail, as without an engine."""
    given = os.environ.get("QUEUE_OVER_SQL_TEST_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail(
            "Chromium is required: ./scripts/test gets it; or install the package chromium, or "
            "name the program in QUEUE_OVER_SQL_TEST_CHROMIUM",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    """The source of axe-core."""
    given = os.environ.get("QUEUE_OVER_SQL_TEST_AXE")
    cached = sorted((pytestconfig.rootpath / ".cache").glob("axe-*.min.js"))
    if not (given or cached):
        pytest.fail(
            "axe-core is required: ./scripts/test gets it, or name its axe.min.js in "
            "QUEUE_OVER_SQL_TEST_AXE",
            pytrace=False,
        )
    return Path(given or cached[-1]).read_text()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium without a screen."""
    program = chromium_program()
    expect.set_options(timeout=_TIMEOUT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            # A container's shared memory is often too small.
            args=["--disable-dev-shm-usage", "--disable-gpu"],
            timeout=3 * _TIMEOUT,
        )
        yield browser
        browser.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Run ``queue-over-sql serve`` on a database, with options; its address."""
    with ExitStack() as stack:

        def begin(url: str, *options: str) -> str:
            log = tmp_path / "serve.log"
            command = [sys.executable, "-m", "queue_over_sql", "serve", "--http", "127.0.0.1:0"]
            with log.open("w") as said:
                server = subprocess.Popen([*command, "--url", url, *options], stderr=said)
            stack.callback(server.wait, 60)
            stack.callback(server.terminate)

            def address() -> str | None:
                assert server.poll() is None, log.read_text()
                found = re.search(r"dashboard is at (http\S+)", log.read_text())
                return found and found[1]

            return eventually(address, "the server listens", within=60) or ""

        yield begin


@pytest.fixture
def open_window(chromium: Browser) -> Iterator[Open]:
    """Open windows, each of a visitor of their own; none of their pages may do what it should not.

    That is: an error on the console, such as a refusal by the content security policy, a script
    that fails, a dialog, a request to another host.
    """
    opened: list[Window] = []
    with ExitStack() as stack:

        def begin(root: str, *, scripts: bool = True, **options: Any) -> Window:
            context = chromium.new_context(java_script_enabled=scripts, **options)
            stack.callback(context.close)
            context.set_default_timeout(_TIMEOUT)
            window = Window(context.new_page(), root, [])
            complain = window.complaints.append
            context.on("console", lambda said: _note(said.type, said.text, complain))
            context.on("weberror", lambda failed: complain(f"script: {failed.error}"))
            context.on("dialog", lambda shown: _note_dialog(shown, complain))
            context.on("request", lambda asked: _note_request(asked.url, root, complain))
            opened.append(window)
            return window

        yield begin
        assert [] == [each for window in opened for each in window.complaints]


def _note(kind: str, text: str, complain: Callable[[str], None]) -> None:
    if kind in {"error", "warning"} and not text.startswith(_REFUSED):
        complain(f"console: {text}")


def _note_dialog(shown: Dialog, complain: Callable[[str], None]) -> None:
    complain(f"dialog: {shown.message}")
    shown.dismiss()


def _note_request(url: str, root: str, complain: Callable[[str], None]) -> None:
    if not url.startswith((f"{root}/", "data:", "about:")):
        complain(f"request: {url}")
