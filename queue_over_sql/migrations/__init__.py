"""Versions of the tables: what each one changed, and how tables of an earlier one are upgraded."""

from __future__ import annotations

from queue_over_sql.migrations.changes import SchemaChange as SchemaChange
from queue_over_sql.migrations.upgrade import Migrations as Migrations
from queue_over_sql.migrations.upgrade import Upgrader as Upgrader
