"""Pipelines around the queues: each a function, a command and a page of the documentation."""
