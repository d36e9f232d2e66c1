"""Groups: the order and the limits of messages with one key, where a queue has them."""
