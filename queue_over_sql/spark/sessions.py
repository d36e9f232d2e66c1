"""A Spark session that is set up for this machine and this Python."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import SparkSession

from queue_over_sql.spark.java import find_java
from queue_over_sql.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_SPARK: Final = (4, 2)

# A task that fails is tried again, as in a cluster; Spark alone gives up at the first failure.
_LOCAL_MASTER: Final = "local[*,3]"
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def session(
    *,
    app_name: str = "queue_over_sql",
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **conf: Any,
) -> SparkSession:
    """Get or make a Spark session that knows the format ``queue_over_sql``.

    Where a session runs already, or ``spark-submit`` has prepared one, it is that. Else a local
    one is started: on all cores, answering on the loopback interface only, without the web page,
    with as many partitions after a shuffle as there are cores. Its Java is found as
    ``queue_over_sql.spark.java`` says, and its Python workers run this very Python.

    Args:
        app_name: what the session is called.
        master: where to run, such as ``local[2]`` or ``spark://host:7077``.
        remote: address of a Spark Connect server, such as ``sc://host``; or ``local[2]``, to start
            one here.
        settings: Spark's settings by their names: ``{"spark.driver.memory": "2g"}``.
        conf: the same with underscores for the points: ``spark_driver_memory="2g"``.

    Raises:
        JavaMissing: there is no Java to run on.
        ImportError: PySpark is older than 4.2, or what Spark Connect needs is not installed.
        ValueError: a setting's name does not begin with ``spark.``, or two arguments contradict
            each other.
    """
    check_spark()
    asked = _named(settings or {}, conf)
    if master is not None and remote is not None:
        msg = "give either master= or remote=: a Connect server chooses where it runs"
        raise ValueError(msg)
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**_defaults(master, remote, asked), **asked}.items():
        builder = builder.config(name, value)
    if remote is None:
        return builder.getOrCreate()
    made = builder.remote(remote).getOrCreate()
    # The server need not have looked for it.
    register(made)
    return made


def check_spark() -> None:
    """Let a PySpark pass that has the data source API that is needed.

    Raises:
        ImportError: it is too old.
    """
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < OLDEST_SPARK:
        needed = ".".join(map(str, OLDEST_SPARK))
        msg = (
            f"PySpark {needed} or newer is needed, and {pyspark.__version__} is installed: "
            "install the extra spark of queue-over-sql"
        )
        raise ImportError(msg)


def _named(settings: Mapping[str, Any], conf: Mapping[str, Any]) -> dict[str, str]:
    """All settings by Spark's names for them, as text."""
    found: dict[str, str] = {}
    for name, value in {**settings, **{k.replace("_", "."): v for k, v in conf.items()}}.items():
        if not name.startswith("spark."):
            given = name.replace(".", "_")
            msg = (
                f"unknown argument {given}: settings of Spark begin with spark, as in "
                "spark_driver_memory='2g'; other arguments are app_name, master, remote, settings"
            )
            raise ValueError(msg)
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _defaults(master: str | None, remote: str | None, asked: Mapping[str, str]) -> dict[str, str]:
    """What to set besides, unless the user or whoever launched this process has done so."""
    if _is_running():
        return {}
    where = remote or master or asked.get("spark.master") or _LOCAL_MASTER
    if "PYSPARK_GATEWAY_PORT" in os.environ or (remote or "").startswith("sc://"):
        # The other side was set up when it was started.
        return {} if master is None else {"spark.master": master}
    os.environ["JAVA_HOME"] = str(find_java())
    if "spark.pyspark.python" not in asked:
        # Otherwise the workers run whatever python3 is on the PATH, without what is needed here.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults: dict[str, str] = {} if remote else {"spark.master": where}
    if where.startswith("local"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
        defaults |= {**_LOCAL, "spark.sql.shuffle.partitions": str(cores)}
    return defaults


def _is_running() -> bool:
    return SparkSession.getActiveSession() is not None
