"""Pure values and text: durations, JSON lines, words for people, pauses.

Every module of the package may import from here, and nothing here knows a database.
"""
