"""The sink `ottla`: rows of tables and streams become records.

`df.write.format("ottla")` and `df.writeStream.format("ottla")`.
"""
