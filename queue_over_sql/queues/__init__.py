"""The operations of one queue: publish, claim, decode, settle, recover, select, archive."""
