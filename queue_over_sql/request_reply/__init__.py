"""Request and reply over temporary queues."""
