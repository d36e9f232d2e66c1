"""The wheel and the source distribution, as ``scripts/release`` builds and checks them."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.command_line import ROOT
from tests.docs.samples import blocks

HOME = "https://code.example.org/owner/project"
PACKAGES = ("queue_over_sql", "sqlalchemy_h2", "pyspark_queue_over_sql")
TOOLS = ROOT / ".cache" / "servers" / "release"


@pytest.mark.fetched
def test_a_distribution_is_ready_for_an_index(tmp_path: Path) -> None:
    """What a package index gets is whole, installs, runs, and its page has links that work.

    Whoever builds the wheel from the source distribution gets the same bytes. The list of
    what it installs has all that it requires.
    """
    built = tmp_path / "dist"
    _run(str(ROOT / "scripts" / "release"), HOME, str(built))
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    assert set() == _files_of(PACKAGES) - set(zipfile.ZipFile(wheel).namelist())
    page = _page(wheel)
    links = {target for target in re.findall(r"\]\(([^)\s]+)\)", page) if target.startswith(HOME)}
    assert len(re.findall(r"\]\((?!https?://|#)", page)) == 0
    assert len(links) > 30
    assert set() == {link for link in links if not _is_there(link)}

    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [unpacked] = (tmp_path / "source").iterdir()
    again = tmp_path / "again"
    tools = {**os.environ, "PYTHONPATH": str(TOOLS)}
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(again))
    _run(*build, str(unpacked), env=tools)
    assert wheel.read_bytes() == (again / wheel.name).read_bytes()
    assert set() == _required_by(wheel) - _listed_in(built / "sbom.cdx.json")

    _runs_in_a_fresh_environment(wheel, tmp_path / "fresh", tmp_path)


def _runs_in_a_fresh_environment(wheel: Path, folder: Path, work: Path) -> None:
    """Install it beside the dependencies of this environment, and run what the README shows."""
    venv.create(folder, with_pip=False)
    [packages] = (folder / "lib").glob("python*/site-packages")
    # Its dependencies, but not what an editable installation adds to the path.
    (packages / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    python = str(folder / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    _run(*pip, "install", "--no-index", "--no-deps", "--force-reinstall", str(wheel), env=clean)
    _run(*pip, "check", env=clean)
    where = _run(python, "-c", "print(__import__('queue_over_sql').__file__)", env=clean, cwd=work)
    assert Path(where.strip()).is_relative_to(packages)
    sample = next(block.text for block in blocks("README.md") if "python" == block.language)
    ran = _run(python, "-W", "error", "-c", sample, env=clean, cwd=work)
    assert "sending to ada@example.org\n" == ran
    command = str(folder / "bin" / "queue-over-sql")
    stats = _run(command, "--url", "sqlite:///queue.db", "list", env=clean, cwd=work)
    assert "emails" in stats


WITHOUT = """
from hatch_build import CustomMetadataHook

metadata = {"version": "1"}
CustomMetadataHook(".", {}).update(metadata)
print(metadata["urls"], metadata["readme"]["text"], sep="\\n", end="")
"""


@pytest.mark.fetched
def test_a_page_without_an_address_has_no_dead_links(tmp_path: Path) -> None:
    """Built without the address of the repository, the README has its words and no dead links."""
    readme = "[a `b`](docs/c.md) ![d](e.png) [f](https://example.org) [g](#h)\n"
    (tmp_path / "README.md").write_text(readme)
    path = os.pathsep.join((str(ROOT), str(TOOLS)))
    said = _run(sys.executable, "-c", WITHOUT, env={"PYTHONPATH": path}, cwd=tmp_path)
    assert "{}\na `b`  [f](https://example.org) [g](#h)\n" == said


def _page(wheel: Path) -> str:
    [name] = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    addresses = metadata.get_all("Project-URL") or []
    return "\n".join([*addresses, str(metadata.get_payload())])


def _required_by(wheel: Path) -> set[str]:
    """The names of what the wheel needs with the extra ``all``."""
    [name] = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".dist-info/METADATA")]
    required = email.message_from_bytes(zipfile.ZipFile(wheel).read(name)).get_all("Requires-Dist")
    assert required is not None
    return {
        canonicalize_name(each.name)
        for each in map(Requirement, required)
        if each.marker is None or each.marker.evaluate({"extra": "all"})
    }


def _listed_in(bill: Path) -> set[str]:
    read = json.loads(bill.read_text())
    assert "queue-over-sql" == read["metadata"]["component"]["name"]
    return {canonicalize_name(each["name"]) for each in read["components"]}


def _is_there(link: str) -> bool:
    kind, _, rest = link.removeprefix(f"{HOME}/").partition("/")
    tag, _, path = rest.partition("/")
    return kind in {"blob", "raw"} and tag.startswith("v") and (ROOT / path.split("#")[0]).exists()


def _files_of(packages: tuple[str, ...]) -> set[str]:
    found = (path for name in packages for path in (ROOT / name).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


def _run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    ended = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=240
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended.stdout
