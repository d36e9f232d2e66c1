"""README.md and docs/: samples run, links work, and every public name is documented."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

import queue_over_sql
import queue_over_sql.observability
import queue_over_sql.spark
import queue_over_sql.testing
from queue_over_sql.testing.plugin import TestDatabase
from queue_over_sql.testing.servers import SERVER_ENGINES
from tests.cli.command_line import ROOT, environment
from tests.docs.samples import (
    RUN,
    SECONDS,
    SHOWN,
    Block,
    blocks,
    for_engine,
    pages,
    prose_of,
    run,
    runnable,
    scripts_named,
    text_of,
    with_url,
)
from tests.waiting import eventually

# What no test can run: it needs the network, root or Docker. A new one needs a reason here.
NOT_RUN = {
    ("README.md", "pip install"): "installs from a package index",
    ("docs/quickstart.md", "python3 -m venv .venv"): "installs from a package index",
    ("docs/engines.md", "apt-get install"): "installs system packages as root",
    ("docs/deployment.md", "docker compose"): "builds images; tests/examples checks the file",
    ("docs/deployment.md", "systemctl"): "installs units as root; tests/examples checks them",
    ("docs/deployment.md", "kubectl"): "needs a cluster; tests/examples checks the manifests",
    ("docs/http-api.md", "uvicorn"): "starts a server; tests/web/test_page.py runs the page",
    ("docs/http-api.md", "/me"): "asks that server",
    ("docs/http-api.md", "Idempotency-Key"): "asks that server",
    ("docs/http-api.md", "jq"): "asks that server",
    ("docs/observability.md", "scrape_configs"): "configures Prometheus; a test runs one",
    ("docs/dashboard.md", "pip install"): "installs from a package index",
    (
        "docs/dashboard.md",
        "token add",
    ): "shows a server that stays; tests/cli/test_serve.py runs it",
    ("docs/health.md", "curl"): "shows a worker that stays; tests/chaos/test_probes.py runs one",
    ("docs/health.md", "health --live"): "asks that worker; tests/cli/test_health.py asks one",
    ("docs/spark-stream.md", "rounds out"): "shows a streaming query; tests/cli runs it",
    ("docs/spark-stream.md", "consumer release"): "stops such a query; tests/cli runs it",
    ("docs/roles.md", "token add"): "ends in a server; tests/contract/roles looks as it does",
    ("docs/roles.md", "IDENTIFIED BY"): "makes logins; tests/contract/roles makes some",
    ("docs/releasing.md", "scripts/release"): "tests/examples/test_distribution.py runs it",
    ("docs/releasing.md", "twine upload"): "uploads to a package index",
    ("docs/spark.md", "spark-submit"): "needs a cluster; tests/spark submits to local cores",
    ("docs/spark-pipelines.md", "spark load"): "tests/cli/test_spark_pipelines.py runs it",
}
# Its blocks are the usage lines of the commands.
GENERATED = "docs/cli.md"
WITH_SAMPLES = [page for page in pages() if any(not b.marked("file") for b in runnable(page))]
# What a reader tries first; other tests run the features that the other pages show.
READ_FIRST = {"README.md", "docs/quickstart.md", "docs/engines.md"}
NAVIGATION = runpy.run_path(str(ROOT / "scripts" / "docs" / "site" / "navigation.py"))
PACKAGE = ROOT / "queue_over_sql"
# Lower it when pages get shorter: 25,000 is the goal.
WORDS_FOR_USERS = 26_500
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_QUOTED = re.compile(r"`([^`\n]+)`")
# Not addresses of HTTP, nor what a build leaves behind.
_PATH = re.compile(r"(?:\./)?[\w<][\w<>.-]*(?:(?:/[\w<>.-]*)+|\.(?:py|toml|md))")
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?")
_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _in_its_tier(page: str) -> Any:
    """A page as a parameter, marked for the full tier, and where it starts Spark or needs H2."""
    marks = [] if page in READ_FIRST else [pytest.mark.full]
    if any("spark" in block.text for block in runnable(page)):
        marks.append(pytest.mark.spark)
    if any('QueueService("h2://' in block.text for block in runnable(page)):
        marks.append(pytest.mark.engines("h2"))
    return pytest.param(page, marks=marks)


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("page", [_in_its_tier(page) for page in WITH_SAMPLES])
def test_samples_run(page: str, tmp_path: Path) -> None:
    """All samples of a page, in their order, do what the page says, and print what it shows."""
    steps = runnable(page)
    printed = dict(zip(steps, run(steps, tmp_path), strict=True))
    for before, after in pairwise(blocks(page)):
        if after.mark == "output":
            assert after.text == printed[before], f"{page}:{after.line}"


@pytest.mark.engines("postgresql")
def test_handlers_are_tested_on_a_server(database: TestDatabase, tmp_path: Path) -> None:
    """The page's tests pass with its fixture for a server, which leaves no schema behind."""
    found = {block.marked("file"): block.text for block in blocks("docs/testing.md")}
    for name in ("tasks.py", "test_tasks.py"):
        (tmp_path / name).write_text(found[name])
    (tmp_path / "conftest.py").write_text(found["server/conftest.py"])
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path],
        cwd=tmp_path,
        env=environment(TEST_DATABASE_URL=database.url),
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ended.returncode, ended.stdout
    assert "2 passed" in ended.stdout, ended.stdout
    engine = create_engine(database.url)
    assert [] == [name for name in inspect(engine).get_schema_names() if name.startswith("test_")]
    engine.dispose()


SENTRY = """
import json, sqlite3
import sentry_sdk
from sentry_sdk.transport import Transport

sent = []

class Kept(Transport):
    def capture_envelope(self, envelope):
        sent.append(envelope.get_event())

init = sentry_sdk.init
# Its integrations with what happens to be installed take seconds to import.
alone = {"transport": Kept, "auto_enabling_integrations": False}
sentry_sdk.init = lambda **options: init("https://key@sentry.invalid/1", **alone, **options)

import tasks

tasks.service.create_queue("lost").publish("secret")
tasks.service.queue("mails").publish("secret")

@tasks.worker.handle("lost")
def lose(message):
    with sqlite3.connect("shop.db") as other:
        other.execute("DELETE FROM queue_lost")

tasks.worker.run(until_empty=True)
print(json.dumps([event for event in sent if event], default=str))
"""


def test_errors_reach_sentry(tmp_path: Path) -> None:
    """By the page's module: a failed handler, a dead letter and a lost claim, and no payload."""
    [sample] = [block for block in blocks("docs/logging.md") if block.marked("file") == "tasks.py"]
    (tmp_path / "tasks.py").write_text(sample.text)
    ended = subprocess.run(
        [sys.executable, "-c", SENTRY],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    events = json.loads(ended.stdout)
    assert "secret" not in ended.stdout
    [failure] = [event for event in events if "exception" in event]
    assert "the mail server is down" == failure["exception"]["values"][-1]["value"]
    assert "mails" == failure["tags"]["queue"]
    assert 1 == failure["extra"]["message_id"]
    told = {event["extra"]["queue"]: event for event in events if event is not failure}
    assert {"mails", "lost"} == told.keys()
    for queue, event in told.items():
        assert "error" == event["level"]
        assert 1 == event["extra"]["message_id"]
        assert ["{{ default }}", queue] == event["fingerprint"]
    assert "became a dead letter" in told["mails"]["logentry"]["formatted"]
    assert any(
        "raised an exception for message" in str(each)
        for each in told["mails"]["breadcrumbs"]["values"]
    )


WEB_SERVER = """
import uvicorn, shop
from queue_over_sql import QueueService

QueueService("sqlite:///shop.db").create_queue("mails").publish({"order": 7})
uvicorn.run(shop.app, host="127.0.0.1", port=0)
"""


def test_the_worker_of_a_lifespan_leaves_signals_to_the_web_server(tmp_path: Path) -> None:
    """FastAPI with the page's lifespan, whose worker is at work, ends after one SIGTERM."""
    [sample] = [block for block in blocks("docs/fastapi.md") if block.marked("file") == "shop.py"]
    (tmp_path / "shop.py").write_text(sample.text)
    (tmp_path / "server.py").write_text(WEB_SERVER)
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "server.py"],
            cwd=tmp_path,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "Uvicorn running on" in log.read_text(), "the server runs")
        eventually(lambda: "mail for order 7" in log.read_text(), "the worker works")
        server.terminate()
        server.wait(30)
    finally:
        server.kill()
        server.wait()
    assert "Application shutdown complete" in log.read_text()


@pytest.mark.full
def test_samples_are_well_typed(tmp_path: Path) -> None:
    """Strict checks of mypy pass; samples leave out the annotations of their own functions."""
    for page in WITH_SAMPLES:
        write_modules(page, tmp_path)
    strict = "--strict --allow-untyped-defs --allow-untyped-calls --ignore-missing-imports"
    # Classes of packages that have no types, such as Django's.
    strict += " --allow-subclassing-any"
    # A page tells its story in one module, where a later sample may begin anew.
    anew = "--allow-redefinition-new --local-partial-types --disable-error-code=no-redef"
    quiet = f"--follow-imports=silent --cache-dir={os.devnull}"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *f"{strict} {anew} {quiet}".split(), "."],
        cwd=tmp_path,
        env=environment(MYPYPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == checked.returncode, checked.stdout + checked.stderr


def write_modules(page: str, folder: Path) -> None:
    """Write the Python of a page: its files, and all the rest in the order and lines it has."""
    story, prefix = "", re.sub(r"\W", "_", page)
    for block in blocks(page):
        if block.language != "python":
            continue
        if name := block.marked("file"):
            (folder / f"{prefix}_{name.replace('/', '_')}").write_text(block.text)
        else:
            story += "\n" * (block.line - story.count("\n")) + block.text
    (folder / f"{prefix}.py").write_text(story)


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.engines(*SERVER_ENGINES)
def test_samples_run_on_their_engine(database: TestDatabase, tmp_path: Path) -> None:
    """Samples for a server do what they say on such a server."""
    steps = [with_url(block, database.url) for block in for_engine(database.engine)]
    assert steps
    run(steps, tmp_path)


def test_every_server_engine_has_a_sample() -> None:
    """A page shows each engine that has a server, and none that tests do not know."""
    named = {b.marked("runs on") for page in pages() for b in blocks(page)} - {None}
    assert set(SERVER_ENGINES) == named


def test_every_block_is_run_or_on_the_list() -> None:
    """A block is run, or is output or a drawing, or a console session whose reason is known."""
    unknown = []
    for block in (block for page in pages() if page != GENERATED for block in blocks(page)):
        known = block.language in (*RUN, *SHOWN)
        known &= ("text" == block.language) == ("output" == block.mark)
        if block.language == "console":
            known &= any(block.page == page and words in block.text for page, words in NOT_RUN)
        if not known:
            unknown.append(f"{block.page}:{block.line}")
    assert [] == unknown
    shown = [block for page in pages() for block in blocks(page) if block.language == "console"]
    assert len(NOT_RUN) == sum(block.page != GENERATED for block in shown)


def test_scripts_that_are_named_can_be_run() -> None:
    """Scripts in shell blocks exist and are executable; the two of the README are among them."""
    named = {(b.page, name) for page in pages() for b in blocks(page) for name in scripts_named(b)}
    assert set() == {(page, name) for page, name in named if not os.access(ROOT / name, os.X_OK)}
    assert {("README.md", "./scripts/demo"), ("README.md", "./scripts/test")} <= named


def test_links_resolve() -> None:
    """Each relative link leads to a file of the repository, and to a heading that it has."""
    broken = []
    for page in pages():
        for target in _LINK.findall(prose_of(page)):
            name, _, heading = target.partition("#")
            file = ((ROOT / page).parent / name).resolve() if name else ROOT / page
            if "://" in target:
                continue
            if not file.exists() or (heading and heading not in _anchors(file)):
                broken.append((page, target))
    assert [] == broken


def _anchors(file: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = _HEADING.findall(prose_of(str(file.relative_to(ROOT))))
    plain = (re.sub(r"[^\w\- ]", "", heading) for heading in headings)
    return {heading.strip().lower().replace(" ", "-") for heading in plain}


def test_readme_is_short_and_shows_code_early() -> None:
    """The README has at most 150 lines, and working code within its first third."""
    lines = text_of("README.md").splitlines()
    first_code: Block = next(block for block in blocks("README.md") if block.language == "python")
    assert len(lines) <= 150
    assert first_code.line + first_code.text.count("\n") <= len(lines) / 3


def test_every_page_is_in_the_navigation() -> None:
    """docs/README.md has each page in a section, and the index of the API each page of a class."""
    [*pages] = [page for section in NAVIGATION["sections"]().values() for page in section]
    assert len(pages) == len(set(pages))
    docs = ROOT / "docs"
    assert {path.name for path in docs.glob("*.md")} == {*pages, "README.md"} - {
        "../CHANGELOG.md",
        "../CONTRIBUTING.md",
        "../SECURITY.md",
    }
    classes = {target for target in _LINK.findall(text_of("docs/api.md")) if "api/" in target}
    assert {f"api/{path.name}" for path in (docs / "api").iterdir()} == classes


def test_what_a_user_needs_is_short() -> None:
    """Nobody reads more to use the library than this many words."""
    assert sum(NAVIGATION["user_words"]().values()) <= WORDS_FOR_USERS


def test_every_public_name_has_a_page() -> None:
    """The pages of docs/api/ show its docstring; the page of the door lists those for guests."""
    shown = {
        name
        for path in (ROOT / "docs" / "api").iterdir()
        for names in re.findall(r"<!-- reference: (.+) -->", path.read_text())
        for name in names.split()
    }
    assert set(queue_over_sql.__all__) - {"__version__"} <= shown
    door = text_of("docs/inside.md")
    for module in (queue_over_sql.observability, queue_over_sql.testing, queue_over_sql.spark):
        short = module.__name__.partition(".")[2]
        of_guest = door.partition(f"## {module.__name__}\n")[2].partition("## ")[0]
        listed = {f"{short}.{name}" for name in re.findall(r"^- `(\w+)", of_guest, re.MULTILINE)}
        assert {f"{short}.{name}" for name in module.__all__} <= shown | listed


def test_the_pictures_are_current() -> None:
    """docs/pictures/ has what scripts/docs/pictures.py draws."""
    drawn = runpy.run_path(str(ROOT / "scripts" / "docs" / "pictures.py"))["PICTURES"]
    there = {path.name: path.read_text() for path in (ROOT / "docs" / "pictures").iterdir()}
    assert drawn == there, "run: python scripts/docs/pictures.py"


def test_every_public_name_is_documented() -> None:
    """The index has each name of the public API."""
    text = text_of("docs/api.md")
    missing = [n for n in queue_over_sql.__all__ if not re.search(rf"\b{re.escape(n)}\b", text)]
    assert [] == missing


def test_the_api_page_is_current() -> None:
    """docs/api.md is what the docstrings say today."""
    script = [sys.executable, str(ROOT / "scripts" / "docs" / "api.py")]
    made = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert made == text_of("docs/api.md"), "run: python scripts/docs/api.py > docs/api.md"


def test_the_page_of_the_door_is_current() -> None:
    """docs/inside.md is what the docstrings of the door say today."""
    script = [sys.executable, str(ROOT / "scripts" / "docs" / "inside.py")]
    made = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert made == text_of("docs/inside.md"), "run: python scripts/docs/inside.py > docs/inside.md"


def test_the_guide_for_language_models_is_current() -> None:
    """llms.txt is what the README and the navigation say today, and its links lead to files."""
    script = [sys.executable, str(ROOT / "scripts" / "docs" / "llms.py")]
    made = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert made == text_of("llms.txt"), "run: python scripts/docs/llms.py > llms.txt"
    assert [] == [link for link in _LINK.findall(made) if not (ROOT / link).is_file()]


def test_the_table_of_layers_is_current() -> None:
    """The architecture page has all packages in the order of the contract that lint checks."""
    script = [sys.executable, str(ROOT / "scripts" / "docs" / "layers.py")]
    made = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert made in text_of("docs/architecture.md"), "run: python scripts/docs/layers.py"


def test_contributors_read_of_what_there_is() -> None:
    """Each path, class and name in backticks on the pages for contributors exists."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    sources = "\n".join(path.read_text() for path in files)
    known = set(re.findall(r"\w+", sources))
    classes = {"Connection", *re.findall(r"^class (\w+)", sources, re.MULTILINE)}
    wrong = []
    for page in ("CONTRIBUTING.md", "docs/architecture.md"):
        for word in " ".join(_QUOTED.findall(prose_of(page))).split():
            if _PATH.fullmatch(word):
                exists = _is_there(word.removeprefix("./").replace("<engine>", "*"))
            elif name := _NAME.fullmatch(word):
                owner, *attributes = name[1].split(".")
                of_class = _CLASS.fullmatch(owner) is not None
                exists = owner in (classes if of_class else known) and known.issuperset(attributes)
            else:
                continue
            if not exists:
                wrong.append((page, word))
    assert [] == wrong


def _is_there(path: str) -> bool:
    """Whether a path is one of the repository, of the package, or a file of any of its folders."""
    places = [ROOT.glob(path), PACKAGE.glob(path), PACKAGE.rglob(path) if "/" not in path else ()]
    return any(next(iter(place), None) is not None for place in places)


def test_every_dependency_is_justified() -> None:
    """docs/dependencies.md has a row for each requirement, with a reason and a licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    asked = [*project["dependencies"], *(item for extra in extras.values() for item in extra)]
    names = {re.split(r"[\[<>=~! ]", item)[0] for item in asked} - {"queue-over-sql"}
    rows = [line for line in text_of("docs/dependencies.md").splitlines() if line.startswith("|")]
    justified = {n for n in names for row in rows if re.search(rf"\b{re.escape(n)}\b", row)}
    assert set() == names - justified
    assert set() == {extra for extra in extras if not any(f"`{extra}`" in row for row in rows)}


def test_what_is_declared_is_tested() -> None:
    """The versions of pyproject.toml, of the tests' scripts and of docs/compatibility.md agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts = text_of("scripts/lib/packages.sh")
    pins = dict(re.findall(r"^(SQLALCHEMY_\w+|PYTHON_NEWEST)=([\d.]+)$", scripts, re.MULTILINE))
    oldest, last = pins["SQLALCHEMY_OLDEST"], pins["SQLALCHEMY_2_0"]
    [main] = re.findall(r"^SQLAlchemy==(\S+)$", text_of("constraints.txt"), re.MULTILINE)
    major, minor, _ = map(int, main.split("."))
    assert f"SQLAlchemy>={oldest},<{major}.{minor + 1}" in project["dependencies"]
    row = f"| SQLAlchemy | ≥ {oldest}, < {major}.{minor + 1} | {oldest}, {main} | {last} |"
    assert row in text_of("docs/compatibility.md")
    run = text_of("scripts/test").partition('case "${1:-}" in')[2]
    assert 'on_sqlalchemy "$SQLALCHEMY_OLDEST" --tier=default' in run
    python = project["requires-python"].removeprefix(">=")
    newest = pins["PYTHON_NEWEST"]
    assert f"| Python | ≥ {python} | {python} | {newest} |" in text_of("docs/compatibility.md")
    minors = range(int(python.split(".")[1]), int(newest.split(".")[1]) + 1)
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in minors]
    assert versions == [c for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]


def test_versions_agree() -> None:
    """Package, pyproject.toml and changelog speak of the same version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == queue_over_sql.__version__
    assert queue_over_sql.__version__ in text_of("CHANGELOG.md")
