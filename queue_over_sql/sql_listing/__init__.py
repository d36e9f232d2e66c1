"""The statements that operations send, as text: for reviewers, and for operators and their DBA.

No list of statements is kept. ``named`` runs the operations themselves on a connection that sends
nothing (``rehearsal``), and ``formatting`` breaks what they would have sent into lines.
"""

from __future__ import annotations

from queue_over_sql.sql_listing.formatting import formatted as formatted
from queue_over_sql.sql_listing.named import Statement as Statement
from queue_over_sql.sql_listing.named import statements_of as statements_of
