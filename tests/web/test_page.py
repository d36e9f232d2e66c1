"""The pages on the HTTP API are true: commands run against the server, and nothing is missing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2

from queue_over_sql import QueueService, web
from queue_over_sql.web.api.app import ENDPOINTS
from queue_over_sql.web.problems import STATUS, TITLES, code_of
from tests.chaos.test_http_api import free_port
from tests.docs.samples import blocks, text_of
from tests.waiting import eventually

PAGE = "docs/http-api.md"
REFERENCE = "docs/http-reference.md"


def test_page_runs(tmp_path: Path) -> None:
    """All blocks of the page, in their order, in one shell; nothing is refused."""
    assert shutil.which("jq")
    module, *sessions = blocks(PAGE)
    (tmp_path / "api.py").write_text(module.text)
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    command = tmp_path / "queue-over-sql"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m queue_over_sql "$@"\n')
    command.chmod(0o755)
    port = str(free_port())
    first, *others = (block.text.replace("8321", port) for block in sessions)
    prepare, _, serve = first.strip().rpartition("\n")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CURL_HOME": str(tmp_path),
    }

    def shell(text: str) -> str:
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert 0 == ended.returncode, ended.stdout + ended.stderr
        return ended.stdout

    shell(prepare)
    assert serve.startswith("python ")
    assert serve.endswith(" &")
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *serve.removesuffix("&").split()[1:]],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:

        def answers() -> bool:
            assert server.poll() is None, (tmp_path / "log").read_text()
            try:
                return httpx2.get(
                    f"http://127.0.0.1:{port}/api/v1/openapi.json", trust_env=False
                ).is_success
            except httpx2.TransportError:
                return False

        eventually(answers, "the server answers")
        said = shell("\n".join(others))
    finally:
        server.terminate()
        server.wait(30)
    assert '"name":"ada","role":"admin"' in said
    assert said.rstrip().endswith('{"settled":1}')
    with QueueService(f"sqlite:///{tmp_path}/queues.db") as service:
        assert 5_003 == service.queue("jobs").stats().ready


def test_page_names_all_operations() -> None:
    """No operation is missing in the table: the last word of each path is there."""
    page = text_of(REFERENCE)
    for operation in ENDPOINTS:
        words = [word for word in operation.path.split("/") if "{" not in word]
        assert words[-1] in page, operation.path


def test_page_names_all_problems() -> None:
    """Each type that the code can answer is in the table, with its status, and no other."""
    rows = re.findall(r"^\| (\d{3}) \| ([^|]*) \|", text_of(REFERENCE), re.MULTILINE)
    told = {(int(status), code) for status, codes in rows for code in re.findall("`(.*?)`", codes)}
    assert problem_types() == told


def problem_types() -> set[tuple[int, str]]:
    """The status and code of each error of the library, and of each problem that is raised."""
    found = {(status, code_of(kind)) for kind, status in STATUS.items()}
    # Starlette's own, of paths and methods that nobody serves.
    statuses = {404, 405}
    for file in Path(web.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    ast.Name("Problem" | "Refused"),
                    [ast.Constant(int() as status), ast.Constant(str() as code), *_],
                ):
                    found.add((status, code))
                case ast.Call(ast.Name("HTTPException"), [ast.Constant(int() as status), *_]):
                    statuses.add(status)
    return found | {(each, TITLES[each].lower().replace(" ", "-")) for each in statuses}
