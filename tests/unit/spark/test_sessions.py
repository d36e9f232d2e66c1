"""Arguments of ``session``: settings by name, and contradictions."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from queue_over_sql.spark import session, sessions


def test_settings_may_have_underscores_for_points() -> None:
    """Keyword arguments cannot have points; case stays, since Spark's names have both."""
    named = sessions._named(
        {"spark.driver.memory": "2g"}, {"spark_ui_enabled": True, "spark_task_maxFailures": 3}
    )
    assert {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "true",
        "spark.task.maxFailures": "3",
    } == named


def test_an_argument_that_is_no_setting_is_refused() -> None:
    """Spark itself would ignore it."""
    with pytest.raises(
        ValueError, match=r"unknown argument memory: Spark settings must begin with"
    ):
        session(memory="2g")


def test_a_connect_server_chooses_where_it_runs() -> None:
    """Both arguments together contradict each other."""
    with pytest.raises(ValueError, match="either master= or remote="):
        session(master="local[2]", remote="sc://host")


def test_an_old_pyspark_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing there would show as an import error of some class."""
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(ImportError, match=r"PySpark 4\.2 or newer .* 4\.1\.4 .* the extra spark"):
        session()


def test_what_is_prepared_by_spark_submit_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master and the Java were chosen when the driver was launched."""
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert {} == sessions._defaults(None, None, {})
    assert {"spark.master": "local[2]"} == sessions._defaults("local[2]", None, {})
