"""What a load reads: by the format that is named, or the ending of the path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BY_ENDING: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_USUAL: Final = {"csv": {"header": "true"}}


def read_source(
    spark: SparkSession,
    source: str | Sequence[str] | DataFrame,
    form: str | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    """The rows of a source.

    Args:
        spark: the session.
        source: a path or several, the name of a table, or a DataFrame, which is what it is.
        form: the format; None for that of the path's ending.
        options: of Spark's reader.

    Raises:
        TypeError: it is nothing that can be read.
        ValueError: its format cannot be told; the text says how to name it.
    """
    from pyspark.sql import DataFrame

    if isinstance(source, DataFrame):
        return source
    paths = [source] if isinstance(source, str) else list(source)
    if not paths or not all(isinstance(path, str) for path in paths):
        msg = "source must be a path, a list of paths, the name of a table, or a DataFrame"
        raise TypeError(msg)
    chosen = form or _format_of(paths[0])
    given = {**_USUAL.get(chosen, {}), **(options or {})}
    if chosen != "jdbc":
        return spark.read.format(chosen).options(**given).load(paths)
    if "url" not in {name.lower() for name in given}:
        msg = "format jdbc needs the option url, such as jdbc:postgresql://host/database"
        raise ValueError(msg)
    return spark.read.format(chosen).options(**{"dbtable": paths[0], **given}).load()


def _format_of(path: str) -> str:
    name = PurePosixPath(path.rstrip("/")).name.lower()
    for ending in _PACKED:
        name = name.removesuffix(ending)
    found = _BY_ENDING.get(PurePosixPath(name).suffix)
    if found is None:
        msg = (
            f"the format of {path} cannot be told from its name: name it by format=, such as "
            f"{', '.join(sorted(set(_BY_ENDING.values())))} or jdbc"
        )
        raise ValueError(msg)
    return found
