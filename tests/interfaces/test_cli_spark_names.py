"""The function that `spark process` is given, before there is a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.interfaces.command_line import ROOT

CHECK = "from queue_over_sql.cli.spark_process import check_function as c; c({target!r})"


def _check(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where no other test has started Spark."""
    return subprocess.run(
        [sys.executable, "-c", CHECK.format(target=target)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_module_with_a_udf_waits_for_the_session(tmp_path: Path) -> None:
    """`@udf("string")` needs a session to be imported, so it is no wrong argument before one."""
    body = (
        "from pyspark.sql import functions as f\n\n@f.udf('string')\ndef up(text):\n    return text"
    )
    (tmp_path / "mine.py").write_text(f"{body}\n\ndef transform(rows):\n    return rows\n")
    checked = _check("mine", tmp_path)
    assert (0, "") == (checked.returncode, checked.stderr)


def test_a_wrong_name_is_told_before_spark_starts(tmp_path: Path) -> None:
    """Its start takes long."""
    checked = _check("nowhere:transform", tmp_path)
    assert checked.returncode == 1
    assert "there is no module 'nowhere'" in checked.stderr
