"""Where Spark finds the data source: it looks into modules whose names begin with `pyspark_`."""

from ottla.pipeline.source.data_source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
