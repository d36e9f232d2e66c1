"""The archive: finished messages, how they get there, are requeued, exported and pruned."""
