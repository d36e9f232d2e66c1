"""What one queue does: publish, claim, decode, settle, recover, select, archive."""
