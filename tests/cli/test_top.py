"""The command `top`, and `stats --watch` on a terminal, which shows the same."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from queue_over_sql import ConsumerInfo, Queue, QueueService, QueueStats
from queue_over_sql.cli.stats import _screen
from queue_over_sql.observability.counting import Activity
from queue_over_sql.testing.plugin import TestServer
from tests.cli.command_line import command, environment, run
from tests.waiting import eventually

pytestmark = pytest.mark.engines("sqlite")

SHOWN, HIDDEN = "\x1b[?1049h", "\x1b[?1049l"
"""A program takes the whole screen, and gives back what was there."""
SECONDS = 60


class Terminal:
    """A terminal of 100 columns and 20 lines in which a command runs."""

    def __init__(self, *arguments: str, url: str) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("4H", 20, 100, 0, 0))
        self._before = termios.tcgetattr(self._theirs)
        self.text = ""
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment(QUEUE_OVER_SQL_URL=url, TERM="xterm"),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The end of a terminal is an error.
        with suppress(OSError):
            while data := os.read(self._ours, 65_536):
                self.text += data.decode(errors="replace")

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._ours, key.encode())

    def shows(self, text: str) -> bool:
        """Whether it has shown this."""
        return text in self.text

    def ended(self) -> int:
        """The exit code; the screen is that of before, and keys wait for Enter again."""
        code = self.process.wait(SECONDS)
        eventually(lambda: self.shows(HIDDEN), "the screen of before")
        assert self._before == termios.tcgetattr(self._theirs)
        return code

    def close(self) -> None:
        """End what runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._reader.join(SECONDS)
        os.close(self._ours)


@contextmanager
def terminal(*arguments: str, url: str) -> Iterator[Terminal]:
    """A terminal in which the command runs."""
    made = Terminal(*arguments, url=url)
    try:
        yield made
    finally:
        made.close()


def test_top_follows_the_queues_until_q(jobs: Queue, sqlite_url: str) -> None:
    """It shows what came since it began, who holds what, and sorts by the next column at s."""
    with QueueService(sqlite_url, consumer_name="mailer") as service:
        jobs.publish("a")
        with terminal("top", "--interval", "50ms", url=sqlite_url) as screen:
            eventually(lambda: screen.shows("mailer"), "the consumer")
            assert screen.shows(SHOWN)
            jobs.publish_many(range(1233))
            eventually(lambda: screen.shows("1,234"), "the new messages")
            service.queue("jobs").consume(777)
            eventually(lambda: screen.shows("777"), "what the consumer holds")
            assert screen.shows("by queue")
            screen.press("s")
            eventually(lambda: screen.shows("by ready"), "the next order")
            screen.press("q")
            assert 0 == screen.ended()


@pytest.mark.parametrize("arguments", [["top"], ["stats", "--watch", "--interval", "1h"]])
def test_a_signal_gives_the_terminal_back(
    jobs: Queue, sqlite_url: str, arguments: list[str]
) -> None:
    """Ctrl-C and SIGTERM end it in order, also in the middle of a long pause."""
    del jobs
    for number in (signal.SIGINT, signal.SIGTERM):
        with terminal(*arguments, url=sqlite_url) as screen:
            eventually(lambda: screen.shows("oldest ready"), "the screen")
            screen.process.send_signal(number)
            assert 0 == screen.ended()


def test_an_error_gives_the_terminal_back(jobs: Queue, sqlite_url: str) -> None:
    """The error stands below, with its exit code."""
    with terminal("top", "jobs", "--interval", "50ms", url=sqlite_url) as screen:
        eventually(lambda: screen.shows("oldest ready"), "the screen")
        QueueService(sqlite_url).drop_queue(jobs.name)
        assert 3 == screen.ended()
        eventually(lambda: screen.shows("There is no queue"), "the error")
        assert screen.text.index(HIDDEN) < screen.text.index("There is no queue")


@pytest.mark.chaos
@pytest.mark.engines("postgresql")
def test_an_outage_is_shown_and_survived(server: TestServer) -> None:
    """While the server is down the screen says so and keeps its counts; then it goes on."""
    with QueueService(server.url) as service:
        service.create_queue("jobs").publish_many(range(1234))
    with terminal("top", "--interval", "50ms", url=server.url) as screen:
        eventually(lambda: screen.shows("1,234"), "the counts")
        server.stop()
        eventually(lambda: screen.shows("\x1b[31mThe "), "the outage")
        server.start()
        with QueueService(server.url) as service:
            service.queue("jobs").publish_many(range(4321))
        eventually(lambda: screen.shows("5,555"), "the new counts")
        screen.press("q")
        assert 0 == screen.ended()


def test_without_a_terminal_it_says_what_to_use(jobs: Queue, sqlite_url: str) -> None:
    """Wrong usage: code 2."""
    del jobs
    ended = run("top", url=sqlite_url)
    assert 2 == ended.exit_code
    assert "stats --watch" in ended.err


def _drawn(width: int, height: int, order: str = "queue") -> list[str]:
    now = datetime.now(UTC)
    names = [f"queue-{number:02}-{'x' * 20}" for number in range(30)]
    stats = QueueStats(
        *(12_345, 1, 22, 0, 9, 9, 3, 0, 0, 0), timedelta(seconds=90), paused=False, wal_bytes=0
    )
    who = ConsumerInfo("0123456789abcdef", "n" * 60, "h" * 60, 4_194_304, now, now, now)
    seen = Activity(
        dict.fromkeys(names, stats),
        published=dict.fromkeys(names, 1234.5),
        finished={names[7]: 0.5},
        died=dict.fromkeys(names, 2),
        consumers=[who] * 30,
        holds={who.consumer_id: 22},
    )
    console = Console(width=width, file=io.StringIO())
    drawn = _screen(seen, order, width, height)
    lines = console.render_lines(drawn)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def test_a_small_terminal_gets_less() -> None:
    """Fewer columns and rows, but the names, what waits and who holds what."""
    for width, height in ((200, 50), (80, 24), (40, 12)):
        lines = _drawn(width, height)
        assert len(lines) <= height, lines
        assert max(map(len, lines)) <= width, lines
        text = "\n".join(lines)
        wanted = ("queue-00", "12,345", "ready", "claimed", "name", "holds")
        assert [] == [word for word in wanted if word not in text], text
        assert (width > 100) == ("archived" in text), text
        assert "3 +2" in text, text
        assert (width > 40) == ("oldest ready" in text), text


def test_the_order_is_by_the_column_that_was_chosen() -> None:
    """The largest first."""
    assert "queue-00" in _drawn(80, 24)[3]
    assert "queue-07" in _drawn(80, 24, order="out/s")[3]
