"""The interface to an engine: capabilities, expressions, compiled statements, errors."""
