"""The functions for `spark process` and `spark workers`, checked before there is a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import ROOT, run

CHECK = "from queue_over_sql.cli.spark import check_function as c; print(c({!r}, {!r}))"
UDF = """
from pyspark.sql import functions as f

@f.udf('string')
def up(text):
    return text
"""
NEEDY = {
    "a UDF": UDF,
    "a column": "from pyspark.sql import functions as f\nID = f.col('id')",
    "the session": "from pyspark.sql import SparkSession\nspark = SparkSession.active()",
}


def _check(
    target: str, folder: Path, default: str = "transform"
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where no other test has started Spark."""
    return subprocess.run(
        [sys.executable, "-c", CHECK.format(target, default)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.timeout(300)
def test_a_module_that_needs_a_session_waits_for_it(tmp_path: Path) -> None:
    """What asks Spark as soon as it is imported is no wrong argument before Spark runs."""
    for need, code in NEEDY.items():
        (tmp_path / "mine.py").write_text(f"{code}\n\ndef transform(rows):\n    return rows\n")
        checked = _check("mine", tmp_path)
        told = (checked.returncode, checked.stdout, checked.stderr)
        assert (0, "False\n", "") == told, need


def test_a_module_that_needs_none_is_known(tmp_path: Path) -> None:
    """Under the name that a command has for its functions."""
    (tmp_path / "mine.py").write_text("def handle(message): pass\n")
    checked = _check("mine", tmp_path, "handle")
    assert 0 == checked.returncode, checked.stderr
    assert "True\n" == checked.stdout, checked.stderr


def test_a_wrong_name_is_told_before_spark_starts(tmp_path: Path) -> None:
    """Its start takes long."""
    checked = _check("nowhere:transform", tmp_path)
    assert 1 == checked.returncode
    assert "there is no module 'nowhere'" in checked.stderr


def test_a_mistake_of_the_module_itself_is_not_put_off(tmp_path: Path) -> None:
    """It is raised as it is."""
    (tmp_path / "mine.py").write_text("assert 1 == 2, 'mine'\n")
    checked = _check("mine", tmp_path)
    assert 1 == checked.returncode
    assert "AssertionError: mine" in checked.stderr


def test_commands_get_as_far_as_the_session(sqlite_url: str, tmp_path: Path) -> None:
    """With a module that needs one; here Spark cannot start, since a setting makes no sense."""
    (tmp_path / "mine.py").write_text(UDF)
    process = ("process", "jobs", "mine", "--to", "x", "--checkpoint", "y")
    for arguments in (("workers", "jobs", "mine"), process):
        ended = run(*("spark", *arguments, "--conf", "memory=1g"), url=sqlite_url, cwd=tmp_path)
        assert 2 == ended.exit_code, ended.err
        assert "memory=1g" in ended.err, ended.err
