"""Topics as Spark tables and streams: `spark.read.format("ottla")` and `spark.readStream.format("ottla")`."""
