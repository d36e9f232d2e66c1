"""The report: the activity of queues, computed by Spark, as tables and as one page."""

from queue_over_sql.spark.pipelines.report.making import ReportFiles, report

__all__ = ["ReportFiles", "report"]
