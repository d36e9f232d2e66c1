"""The portable statements, each once under the name of its act.

Every builder takes the tables of a queue first, then its variant. ``StatementCache`` compiles the
statement once.
"""
