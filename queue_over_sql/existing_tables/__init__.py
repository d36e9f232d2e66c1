"""Queues over tables of your own, whose rows are the messages."""
