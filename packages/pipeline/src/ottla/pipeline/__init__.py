"""Topics in Spark: the data sources `ottla` and `ottla-log`, and pipelines built on them.

Installing the package is enough for `spark.read.format("ottla")`: Spark finds the data sources by module
name.
"""

__version__ = "0.1.0"
