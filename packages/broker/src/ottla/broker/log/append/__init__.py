"""The append to a log, and the log's end."""
