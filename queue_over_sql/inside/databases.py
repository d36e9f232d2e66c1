"""The door for who takes the URL of a database from a person, or prints rights without one.

Stability: as ``queue_over_sql.inside``.
"""

from queue_over_sql.database.urls import insist_on_file, read_url, shown_place, shown_url
from queue_over_sql.dialects.engines import routines_of, with_driver
from queue_over_sql.roles.roles import rights_for
from queue_over_sql.schema.queue_tables import check_table_prefix

__all__ = [
    "check_table_prefix",
    "insist_on_file",
    "read_url",
    "rights_for",
    "routines_of",
    "shown_place",
    "shown_url",
    "with_driver",
]
