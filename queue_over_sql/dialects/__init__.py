"""The differences between databases: capabilities, statements, clocks and errors."""
