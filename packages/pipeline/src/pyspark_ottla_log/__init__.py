"""Where Spark finds the data source: it looks into modules whose names begin with `pyspark_`."""

from ottla.pipeline.segments.data_source import OttlaLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
