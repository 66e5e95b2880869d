"""Tables and streams into topics: `df.write.format("ottla")` and `df.writeStream.format("ottla")`."""
