"""What operators see of a service and its database."""
