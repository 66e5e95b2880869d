"""The source `ottla`: topics as tables and streams.

`spark.read.format("ottla")` and `spark.readStream.format("ottla")`.
"""
