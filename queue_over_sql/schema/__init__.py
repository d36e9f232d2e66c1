"""The tables of queues, and the tables that all queues share."""
