"""The package's own names: imported when somebody asks, and otherwise as any others."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tests.cli.command_line import environment

LATE = """
import pickle, pydoc, sys
import queue_over_sql

assert "sqlalchemy" not in sys.modules
assert {*queue_over_sql.__all__} <= {*dir(queue_over_sql)}

from queue_over_sql import QueueService
from queue_over_sql.service import QueueService as defined

assert QueueService is defined is queue_over_sql.QueueService
assert pickle.loads(pickle.dumps(QueueService)) is QueueService
assert "class QueueService" in pydoc.plain(pydoc.render_doc(queue_over_sql))

names = {}
exec("from queue_over_sql import *", names)
assert {*queue_over_sql.__all__} <= {*names}
try:
    queue_over_sql.Nothing
except AttributeError as error:
    print(error)
"""


def test_names_are_imported_when_somebody_asks() -> None:
    """`import queue_over_sql` loads no SQLAlchemy; all that one does with names works."""
    ended = subprocess.run(
        [sys.executable, "-c", LATE],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "module 'queue_over_sql' has no attribute 'Nothing'\n" == ended.stdout
    assert "" == ended.stderr


def test_the_pinned_versions_install_on_the_oldest_python() -> None:
    """`constraints.txt` pins no version that refuses a Python that `pyproject.toml` allows."""
    root = Path(__file__).parents[2]
    supported = tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = supported.removeprefix(">=") + ".0"
    pins = re.findall(r"(?m)^([\w.-]+)==(\S+)", (root / "constraints.txt").read_text())
    refusing = {}
    for name, version in pins:
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        allowed = (installed.metadata.get_all("Requires-Python") or [""])[0]
        if installed.version == version and oldest not in SpecifierSet(allowed):
            refusing[name] = allowed
    assert {} == refusing
