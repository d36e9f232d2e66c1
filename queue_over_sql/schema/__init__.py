"""The tables of queues, and those that all queues share."""
