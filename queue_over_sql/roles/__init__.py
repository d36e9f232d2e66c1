"""Roles: the table rights of publishers, consumers, operators and viewers.

``service.roles`` installs them; ``docs/grants.md`` lists each grant with its reason.
"""

from __future__ import annotations

from queue_over_sql.roles.roles import Roles, RolesInstalled

__all__ = ["Roles", "RolesInstalled"]
