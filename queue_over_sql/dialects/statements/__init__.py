"""The portable statements, each in one place under the name of its act.

Every builder takes the tables of a queue first, then its variant, and is compiled once by
``StatementCache``.
"""
