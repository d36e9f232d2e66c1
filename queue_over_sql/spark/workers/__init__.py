"""Workers in Spark's tasks: the coordinator on the driver, and what each task does."""
