"""Adopted tables: queues whose messages are the rows of your own table."""
