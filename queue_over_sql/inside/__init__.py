"""The door to the core, for packages that are built on it."""
