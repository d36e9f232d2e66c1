"""H2 and its driver."""
