"""The programs that the workloads are run with: ours, the limits below it, and its peers."""
