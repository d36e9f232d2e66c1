"""The interface to an engine: features, expressions, sessions, DDL, statements, errors."""
