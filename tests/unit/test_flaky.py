"""A case that fails once is listed as flaky; one that fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# To load what else is installed for pytest takes most of the time.
ALONE = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
CASES = """
import os, pathlib, pytest

def fails_once(name):
    if not (seen := pathlib.Path(__file__).with_name(name)).exists():
        seen.touch()
        raise RuntimeError("out of luck: " + name)

@pytest.fixture
def weak():
    fails_once("fixture")

@pytest.mark.parametrize("name", ["a b", "c::d", "\\u00fc[1]"])
def test_unlucky(name):
    fails_once(name)

def test_unlucky_fixture(weak):
    pass

def test_fine():
    pass

def test_broken():
    assert not os.environ.get("BROKEN")
"""


@pytest.mark.parametrize(
    ("broken", "code", "closing"),
    [("", 0, "2 passed, 4 flaky"), ("1", 1, "1 failed, 1 passed, 4 flaky")],
)
def test_what_fails_once_is_listed_and_counted(
    broken: str, code: int, closing: str, tmp_path: Path
) -> None:
    """The closing line counts it, both outputs are shown, and only real failures fail the run."""
    (tmp_path / "test_cases.py").write_text(CASES, encoding="utf-8")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.flaky"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "--flaky=10", "-n", "2", "."],
        cwd=tmp_path,
        env={**os.environ, **ALONE, "BROKEN": broken},
        capture_output=True,
        text=True,
        check=False,
    )

    lines = done.stdout.splitlines()
    assert code == done.returncode
    assert closing in lines[-1]
    flaky = {line.split("::", 1)[1] for line in lines if line.startswith("FLAKY test_cases.py")}
    expected = {"test_unlucky[a b]", "test_unlucky[c::d]", "test_unlucky[\\xfc[1]]"}
    assert expected | {"test_unlucky_fixture"} == flaky
    assert "out of luck: c::d" in done.stdout
    assert "PASSED test_cases.py::test_unlucky[c::d]" in done.stdout


LEFT_BEHIND = """
import gc, threading, warnings

go_on = threading.Event()

class Connection:
    def __del__(self):
        warnings.warn("left open", ResourceWarning)

def wait():
    go_on.wait()
    raise RuntimeError("stopped")

def test_leaves_much():
    connection = Connection()
    connection.itself = connection
    threading.Thread(target=wait, daemon=True, name="left").start()
    threading.Timer(0.2, go_on.set).start()
    assert not connection

def test_after_it():
    go_on.wait()
    for thread in threading.enumerate():
        if thread.name == "left":
            thread.join()
    gc.collect()
"""


def test_what_a_failed_case_leaves_behind_fails_no_other(tmp_path: Path) -> None:
    """Neither the error of its thread, nor the warning of its connection."""
    (tmp_path / "test_cases.py").write_text(LEFT_BEHIND, encoding="utf-8")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.flaky"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "."],
        cwd=tmp_path,
        env={**os.environ, **ALONE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1]
