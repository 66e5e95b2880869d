"""Log segments on disk as Spark tables: `spark.read.format("ottla-log")`."""
