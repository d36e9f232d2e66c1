"""The samples of README.md and docs/: fenced blocks, what marks them, and a run of a whole page.

A comment on the line before a block says how it is meant:

``<!-- file: tasks.py -->``
    Python that is a module of its own: written to the page's folder, not run by itself.
``<!-- runs on: postgresql -->``
    Python that needs a server: run apart from the page, with the server's URL in the place of
    the one on ``db.example.org``. SQL of such a block is given to the shell of that engine.
``<!-- output -->``
    text that the block before it prints, exactly.

``console`` blocks are shown and never run. Everything else of ``python`` and ``sh`` is run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import URL, make_url

from tests.cli.command_line import ROOT, environment

RUNNER = Path(__file__).with_name("run_samples.py")
RUN = ("python", "sh", "sql")
SHOWN = ("console", "text")
SECONDS = 600.0
"""How long the samples of a page may take: those that start Spark take a minute and more."""
_FENCE = re.compile(r"```(\w*)\s*\Z")
_MARK = re.compile(r"<!-- (output|(?:file|runs on): .+) -->\Z")
_EXAMPLE_URL = re.compile(r'"\w+(?:\+\w+)?://[^"]*@db\.example\.org[^"]*"')
_SCRIPT = re.compile(r"(\./\S+)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""

    def marked(self, kind: str) -> str | None:
        """What stands after ``kind:`` in the mark; None where there is no such mark."""
        name, _, value = self.mark.partition(": ")
        return value if name == kind else None


def pages() -> list[str]:
    """All pages of the documentation, relative to the repository."""
    at_the_top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    found = [*at_the_top, *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def text_of(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    mark, started, language, body = "", 0, "", list[str]()
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        if started:
            if line == "```":
                found.append(Block(page, started, language, "\n".join(body) + "\n", mark))
                mark, started, body = "", 0, []
            else:
                body.append(line)
        elif fence := _FENCE.match(line):
            started, language = number, fence[1]
        else:
            marked = _MARK.match(line)
            mark = marked[1] if marked else mark if not line.strip() else ""
    assert 0 == started, f"{page}:{started}: the block is not closed"
    return found


def runnable(page: str) -> list[Block]:
    """The blocks of a page that run in its own session, without a server."""
    return [
        block for block in blocks(page) if block.language in RUN and block.marked("runs on") is None
    ]


def for_engine(engine: str) -> list[Block]:
    """The blocks of all pages that run on a server of this engine."""
    return [b for page in pages() for b in blocks(page) if b.marked("runs on") == engine]


def scripts_named(block: Block) -> list[str]:
    """The scripts of this repository that a shell block starts."""
    lines = block.text.splitlines() if block.language == "sh" else []
    return [match[1] for line in lines if (match := _SCRIPT.match(line))]


def with_url(block: Block, url: str) -> Block:
    """The block with a real URL instead of the one of the example; SQL with its shell around."""
    if block.language == "sql":
        typed = f"{_shell(make_url(url))} <<'END'\n{block.text}END\n"
        return Block(block.page, block.line, "sh", typed, block.mark)
    text, count = _EXAMPLE_URL.subn(lambda _: json.dumps(url), block.text)
    assert count, f"{block.page}:{block.line}: no URL on db.example.org"
    return Block(block.page, block.line, block.language, text, block.mark)


def _shell(url: URL) -> str:
    """The command that reads SQL for a server, and ends at the first error."""
    place = f"-h {url.host} -{{port}} {url.port} -{{user}} {url.username} {url.database}"
    secret = shlex.quote(url.password or "")
    if url.get_backend_name() == "postgresql":
        return f"PGPASSWORD={secret} psql -X -v ON_ERROR_STOP=1 {place.format(port='p', user='U')}"
    return f"MYSQL_PWD={secret} mysql --no-defaults {place.format(port='P', user='u')}"


def run(steps: Sequence[Block], folder: Path) -> list[str]:
    """Run blocks in one session, in an empty folder; returns what each of them printed.

    Scripts of the repository are left out: what they do is run elsewhere.
    """
    work, tools, plan = folder / "work", folder / "tools", folder / "plan.json"
    work.mkdir()
    tools.mkdir()
    _provide_commands(tools)
    plan.write_text(json.dumps([_step(block) for block in steps]))
    path = os.pathsep.join([str(tools), os.environ.get("PATH", "")])
    try:
        ended = subprocess.run(
            [sys.executable, str(RUNNER), str(plan)],
            cwd=work,
            env=environment(PATH=path, PYTHONDONTWRITEBYTECODE="1"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"not done after {SECONDS} s: {late.stderr!r}") from late
    assert 0 == ended.returncode, ended.stderr
    printed: list[str] = json.loads(plan.with_suffix(".out").read_text())
    return printed


def _step(block: Block) -> dict[str, object]:
    kept = [
        line
        for line in block.text.splitlines()
        if block.language != "sh" or not _SCRIPT.match(line)
    ]
    return {**asdict(block), "text": "\n".join(kept) + "\n", "file": block.marked("file")}


def _provide_commands(folder: Path) -> None:
    """Put this interpreter, and its ``queue-over-sql`` and pytest, on the PATH."""
    commands = {"queue-over-sql": "-m queue_over_sql ", "pytest": "-m pytest ", "python": ""}
    for name, module in commands.items():
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        command.chmod(0o755)
