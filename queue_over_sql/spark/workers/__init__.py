"""Workers in Spark's tasks: the coordinator on the driver, and the task of each worker."""
