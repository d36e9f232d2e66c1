"""Publishing: checked and encoded messages, and how they are inserted."""
