"""Django looks here for commands."""
