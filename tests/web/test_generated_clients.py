"""Clients that others' generators make of the document, with our samples, on a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queue_over_sql.web.app import create_app
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore
from tests.cli.command_line import succeed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = [pytest.mark.engines("sqlite"), pytest.mark.fetched]
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "examples" / "http"
# ./scripts/test fetches them, at pinned versions.
GENERATORS = ROOT / ".cache" / "servers" / "generators"
# The command needs no database.
NOWHERE = "sqlite:////nowhere/queues.db"
SAID = ["published 1: created", "claimed 1, attempt 1: ", "settled 1", "lost 1"]


@pytest.fixture
def environment(make_service: MakeService) -> Iterator[dict[str, str]]:
    """The environment of a sample, whose server has the queue ``jobs``."""
    service: QueueService = make_service()
    jobs = service.create_queue("jobs", archive="all")
    store = WebStore(service, WebSettings())
    store.prepare()
    token = store.add_token("sample", Role.OPERATOR)[0]
    with serving(create_app(service)) as root:
        # ./scripts/test sets this one, and httpx refuses an empty file.
        kept = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
        yield {**kept, "QUEUES_URL": f"{root}/api/v1", "QUEUES_TOKEN": token}
    assert 1 == jobs.archive.messages(status="done").count()


def run(*command: object, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a program of these words says; it succeeds."""
    words = [str(word) for word in command]
    ended = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def check(said: str) -> None:
    """The sample published, claimed and settled a message, and saw the problem."""
    lines = said.splitlines()
    assert len(SAID) == len(lines), said
    assert all(line.startswith(begin) for line, begin in zip(lines, SAID, strict=True)), said
    assert "17" in said


def test_typescript(environment: dict[str, str], tmp_path: Path) -> None:
    """Strict types, for what is sent and for what comes back; the compiled sample works."""
    document = tmp_path / "openapi.json"
    document.write_text(succeed("openapi", url=NOWHERE).out)
    (tmp_path / "node_modules").symlink_to(GENERATORS / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(SAMPLES / "client.ts", tmp_path)
    programs = tmp_path / "node_modules" / ".bin"
    run(programs / "openapi-typescript", document, "-o", "api.ts", folder=tmp_path)
    options = (
        "--strict --target es2022 --module nodenext --moduleResolution nodenext --skipLibCheck"
    )
    run(programs / "tsc", *options.split(), "client.ts", folder=tmp_path)
    check(run("node", "client.js", "jobs", folder=tmp_path, environment=environment))


def test_python(environment: dict[str, str], tmp_path: Path) -> None:
    """All operations but the stream, whose NDJSON it does not know."""
    document = tmp_path / "openapi.json"
    document.write_text(succeed("openapi", url=NOWHERE).out)
    shutil.copy(SAMPLES / "client.py", tmp_path)
    generator = {**os.environ, "PYTHONPATH": str(GENERATORS / "python")}
    options = ["--path", document, "--meta", "none", "--output-path", "queues_client"]
    made = run(
        *(sys.executable, "-m", "openapi_python_client", "generate", *options),
        folder=tmp_path,
        environment=generator,
    )
    assert 1 == made.count("WARNING parsing"), made
    assert "WARNING parsing POST /queues/{queue}/messages/stream" in made
    said = run(sys.executable, "client.py", "jobs", folder=tmp_path, environment=environment)
    check(said)
