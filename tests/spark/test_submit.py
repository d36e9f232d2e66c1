"""A program run by ``spark-submit``, as on a cluster, but on local cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from queue_over_sql import QueueService
from tests.spark.conftest import ROOT

pytestmark = [pytest.mark.full, pytest.mark.spark]

PROGRAM = """
from queue_over_sql.spark import session

spark = session()
place = {"urlEnv": "ORDERS_URL", "queue": "orders"}
rows = spark.range(50).selectExpr("string(id) AS payload")
rows.write.format("queue_over_sql").options(**place).mode("append").save()
print("waiting:", spark.read.format("queue_over_sql").options(**place).load().count())
print("on:", spark.sparkContext.master)
"""


def test_a_submitted_program_takes_its_url_from_the_environment(tmp_path: Path) -> None:
    """``session()`` joins what ``spark-submit`` prepared, and no option carries the URL."""
    url = f"sqlite:///{tmp_path}/secret-name.db"
    orders = QueueService(url).create_queue("orders")
    program = tmp_path / "pipeline.py"
    program.write_text(PROGRAM)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.ui.enabled": "false",
        "spark.executorEnv.ORDERS_URL": url,
        "spark.pyspark.python": sys.executable,
        "spark.local.dir": str(tmp_path / "local"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    conf = [part for item in settings.items() for part in ("--conf", "=".join(item))]
    done = subprocess.run(
        [submit, "--master", "local[2]", *conf, program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORDERS_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    assert "waiting: 50\non: local[2]\n" in done.stdout
    # Spark logs the settings it was given, the program's own words name no URL.
    assert "secret-name" not in done.stdout
    assert 50 == orders.stats().ready
