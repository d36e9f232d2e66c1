"""Shells of database servers as consumers: psql and mysql, controlled through pipes and killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import URL, make_url

from queue_over_sql import ClaimLost, Message
from tests.chaos.journal import Journal

END = "~end~"
LOST = ("is lost", "was delivered")


class ShellEnded(Exception):
    """The shell is gone, as after a kill."""


class Shell:
    """One session of psql or mysql."""

    def __init__(self, address: str) -> None:
        url = make_url(address)
        self._postgresql = url.get_backend_name() == "postgresql"
        self._popen = subprocess.Popen(
            _psql(url) if self._postgresql else _mysql(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PGPASSWORD": url.password or "",
                "MYSQL_PWD": url.password or "",
                "LC_ALL": "C.UTF-8",
            },
        )

    def call(self, routine: str, *arguments: str | int) -> list[list[str]]:
        """Call a routine; the rows that it returns as texts.

        Raises:
            ClaimLost: the fence refused it.
            ShellEnded: the shell is gone; whether the call was done is unknown.
        """
        values = ", ".join(str(a) if isinstance(a, int) else f"'{a}'" for a in arguments)
        function = routine.startswith("put_")
        if self._postgresql:
            lines = self._ask(f"SELECT * FROM {routine}({values});\n\\echo {END}\n")
        else:
            verb = "SELECT" if function else "CALL"
            lines = self._ask(f"{verb} {routine}({values});\nSELECT '{END}';\n")
        text = "\n".join(lines)
        if any(words in text for words in LOST):
            raise ClaimLost(text)
        assert "ERROR" not in text, text
        return [line.split("\t") for line in lines]

    def kill(self) -> None:
        """SIGKILL."""
        self._popen.kill()

    def close(self) -> None:
        """End it, if it still runs, and free its pipes."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.kill()
        self._popen.wait()
        with contextlib.suppress(BrokenPipeError):  # what was unsent, the dead no longer need
            self._popen.stdin.close()
        self._popen.stdout.close()

    def _ask(self, text: str) -> list[str]:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(text)
            self._popen.stdin.flush()
        except OSError as error:
            raise ShellEnded from error
        lines: list[str] = []
        for line in self._popen.stdout:
            if line.rstrip("\n") == END:
                return lines
            lines.append(line.rstrip("\n"))
        raise ShellEnded


class ShellConsumer:
    """A loop in a shell that gets and deletes, puts now and then, and writes down all it saw."""

    def __init__(self, address: str, journal: Path, name: str) -> None:
        self.name = name
        self._failure: BaseException | None = None
        self._shell = Shell(address)
        self._journal = Journal(journal, name)
        self._stop = threading.Event()
        self._puts = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Kill the shell in the middle of whatever it does, and wait for the end of the loop."""
        self._shell.kill()
        self.finish()

    def finish(self) -> None:
        """Let the loop end by itself, and raise what it failed with."""
        self._stop.set()
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the shell and free its pipes."""
        self._shell.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._put()
                for _ in range(3):
                    self._get()
        except ShellEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self._failure = error

    def _put(self) -> None:
        self._puts += 1
        token = f"{self.name}-{self._puts}"
        self._journal.intends([token])
        self._shell.call("put_message_in_queue", "jobs", json.dumps({"token": token}), 0, 0)
        self._journal.published([token])

    def _get(self) -> None:
        for row in self._shell.call("get_message_from_queue", "jobs"):
            message = _message(row)
            self._journal.delivered([message])
            with self._journal.settling("ack", [message]):
                self._delete(message)

    def _delete(self, message: Any) -> None:
        try:
            if message.id % 2:
                self._shell.call("delete_message_from_queue", "jobs", message.id)
            else:
                self._shell.call("ack_message", "jobs", message.id, message.consumer_round)
        except ClaimLost as lost:
            raise ClaimLost(str(lost), [message]) from lost


def _message(row: list[str]) -> Message:
    """A row of ``get_message_from_queue`` as the journal knows messages."""
    described = SimpleNamespace(
        queue="jobs",
        id=int(row[0]),
        consumer_id="sql-api",
        consumer_round=int(row[1]),
        payload=json.loads(row[2]),
        attempt=int(row[7]),
    )
    return cast("Message", described)


def _psql(url: URL) -> list[str]:
    place = ["-h", str(url.host), "-p", str(url.port), "-U", str(url.username), str(url.database)]
    return ["psql", "-X", "-q", "-A", "-t", "-F", "\t", *place]


def _mysql(url: URL) -> list[str]:
    how = ["--no-defaults", "--batch", "--raw", "--unbuffered", "--skip-column-names", "--force"]
    place = ["-h", str(url.host), "-P", str(url.port), "-u", str(url.username), str(url.database)]
    return ["mysql", *how, *place]
