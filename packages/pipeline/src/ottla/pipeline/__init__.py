"""Data pipelines over topics on Spark, through PySpark."""
