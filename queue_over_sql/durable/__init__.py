"""Durable consumers and staged writes, for streaming engines such as Spark."""
