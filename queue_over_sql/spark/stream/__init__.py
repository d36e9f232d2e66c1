"""The streaming source: rounds of a durable consumer as Spark's offsets."""
