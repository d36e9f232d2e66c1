"""Limits of a whole queue: how many of its messages may be in hand at once."""
