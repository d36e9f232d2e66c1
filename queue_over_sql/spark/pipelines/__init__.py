"""Pipelines around queues; each is a function, a command and a page of the documentation."""
