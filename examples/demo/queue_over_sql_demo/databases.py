"""Which databases several processes can use at the same time, as the demo's servers must."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import URL

from queue_over_sql.database.urls import read_url

PRIVATE = (
    "Only one process at a time can open {url}, but the demo runs several. Use a database server, "
    "an SQLite file, or an H2 file with ?AUTO_SERVER=TRUE."
)


def is_private(database: str) -> bool:
    """Whether only one process can use the database of this URL; False for other texts."""
    try:
        url = read_url(database)
    except ValueError:
        return False
    return _PRIVATE.get(url.get_backend_name(), _never)(url)


def _sqlite(url: URL) -> bool:
    path = url.database or ""
    in_memory = path in {"", ":memory:"} or path.startswith("file::memory:")
    return in_memory or "mode=memory" in path or url.query.get("mode") == "memory"


def _h2(url: URL) -> bool:
    settings = {name.upper(): str(value).upper() for name, value in url.query.items()}
    if url.host:
        return False
    in_memory = (url.database or "").startswith("mem:")
    return in_memory or settings.get("AUTO_SERVER") != "TRUE"


def _never(_: URL) -> bool:
    return False


_PRIVATE: Mapping[str, Callable[[URL], bool]] = {"sqlite": _sqlite, "h2": _h2}
