"""The catalog of a service: which queues there are, how they are created and dropped."""
