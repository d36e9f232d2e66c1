"""Roles: the table rights of publishers, consumers, operators and viewers.

``service.roles`` installs them; ``docs/grants.md`` lists each grant with its reason.
"""
