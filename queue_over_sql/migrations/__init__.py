"""Schema versions: what each of them changed, and the upgrade of tables."""

from __future__ import annotations

from queue_over_sql.migrations.changes import SchemaChange as SchemaChange
from queue_over_sql.migrations.upgrade import Migrations as Migrations
from queue_over_sql.migrations.upgrade import Upgrader as Upgrader
