"""What tests of queues need: servers of every engine, and a pytest plugin.

`queue_over_sql.testing.servers` starts private database servers from local binaries or containers.
`queue_over_sql.testing.plugin` offers them as fixtures; a project turns it on in its top-level
``conftest.py`` with ``pytest_plugins = ["queue_over_sql.testing.plugin"]``.
"""
