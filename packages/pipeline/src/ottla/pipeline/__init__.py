"""Topics in Spark: the data sources `ottla` and `ottla-log`, and pipelines built on them.

Installing the package is enough for `spark.read.format("ottla")`: Spark finds its modules by their names.
"""

__version__ = "0.1.0"
