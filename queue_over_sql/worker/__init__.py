"""The worker: handlers, their threads and transactions, renewed leases, time limits."""
