"""The options of the sink, for the parser and the reference."""

from __future__ import annotations

from ottla.pipeline.options import Option

MARKERS_TOPIC = "ottla-spark-batches"
TRANSACTIONAL_ID_PREFIX = "ottla-spark"

OPTIONS = (
    Option("topic", None, "the topic of all rows; it wins over the column `topic`"),
    Option(
        "delivery", "at-least-once",
        "the guarantee when a batch is replayed: `at-least-once`; `dedupe`, which gives every row "
        "an id; or `exactly-once`, in transactions",
    ),
    Option(
        "write.id", None,
        "the name of a table write, or of a write inside `foreachBatch`, that identifies a "
        "repetition; random if not given",
        "batch",
    ),
    Option(
        "includeTimestamps", "false",
        "whether the column `timestamp` becomes the timestamp of records; otherwise they get the "
        "time of sending",
    ),
    Option(
        "markers.topic", MARKERS_TOPIC,
        "the topic in which `exactly-once` records the tasks that are done; it is created if "
        "missing",
    ),
    Option(
        "transactional.id.prefix", TRANSACTIONAL_ID_PREFIX,
        "the prefix of the transactional ids of `exactly-once`",
    ),
    Option(
        "failOnChangedReplay", "true",
        "whether `exactly-once` fails a query whose replayed batch has other rows; with `false` the "
        "tasks of such a batch commit at once, and rows that are already written are not compared",
    ),
    Option("checkpointLocation", None, "Spark's own: the folder with the progress of a query", "stream"),
    Option("queryName", None, "Spark's own: the name of a query", "stream"),
    Option("path", None, "set by `save(...)`; has no effect"),
)  # fmt: skip
"""All options except those of the client, which begin with `kafka.`."""
