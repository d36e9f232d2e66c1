"""Whole numbers and texts as Python's ``int`` and ``str``, whatever an application registered.

An application may let psycopg read an ``int8`` as text, for example for JavaScript, and a database
with the encoding SQL_ASCII gives texts as bytes. Our statements compare what they read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event

if TYPE_CHECKING:
    from sqlalchemy import Engine

# https://www.postgresql.org/docs/current/catalog-pg-type.html: the oid of each type by its name.
_NUMBERS: Final = {"int8": 20, "int2": 21, "int4": 23}
_TEXTS: Final = {"text": 25, "varchar": 1043}


def read_otherwise(driver: Any) -> list[str]:
    """The types that a psycopg connection reads as other types than ``int`` and ``str``."""
    odd = [name for name, oid in _NUMBERS.items() if not isinstance(_read(driver, oid), int)]
    return odd + [name for name, oid in _TEXTS.items() if not isinstance(_read(driver, oid), str)]


def _read(driver: Any, oid: int) -> Any:
    loader = driver.adapters.get_loader(oid, 0)
    return None if loader is None else loader(oid, driver).load(b"1")


def listen(engine: Engine) -> None:
    """Let each connection of one of our engines read plain values."""

    def configure(connection: Any, _: object) -> None:
        driver = engine.dialect.get_driver_connection(connection)
        if read_otherwise(driver):
            _read_plainly(driver)

    event.listen(engine, "connect", configure)


def _read_plainly(driver: Any) -> None:
    from psycopg.types.numeric import IntLoader
    from psycopg.types.string import TextLoader

    for oids, loader in ((_NUMBERS, IntLoader), (_TEXTS, TextLoader)):
        for oid in oids.values():
            driver.adapters.register_loader(oid, loader)
