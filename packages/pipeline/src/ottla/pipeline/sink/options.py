"""The options of the sink, for whoever reads them and for the reference."""

from __future__ import annotations

from ottla.pipeline.options import Option

MARKERS_TOPIC = "ottla-spark-batches"
TRANSACTIONAL_ID_PREFIX = "ottla-spark"

OPTIONS = (
    Option("topic", None, "the topic of all rows; it wins over the column `topic`"),
    Option(
        "delivery", "at-least-once",
        "what is promised when a batch comes again: `at-least-once`; `dedupe`, which gives every "
        "row an id; or "
        "`exactly-once`, where the brokers have transactions",
    ),
    Option(
        "write.id", None,
        "a name for a write of a table, or inside of `foreachBatch`, by which it is known when it "
        "is done again; "
        "drawn by chance when it is not given",
        "batch",
    ),
    Option(
        "includeTimestamps", "false",
        "whether the column `timestamp` becomes the time of records; otherwise that is when they are sent",
    ),
    Option(
        "markers.topic", MARKERS_TOPIC,
        "where `exactly-once` keeps which tasks are done; it is made when missing",
    ),
    Option(
        "transactional.id.prefix", TRANSACTIONAL_ID_PREFIX,
        "what the transactional ids of `exactly-once` begin with",
    ),
    Option(
        "failOnChangedReplay", "true",
        "whether `exactly-once` ends a query whose batch comes again with other rows; with `false` the "
        "tasks of such a batch commit at once, and what is written already is not looked at",
    ),
    Option("checkpointLocation", None, "Spark's own: the folder where a query keeps how far it is", "stream"),
    Option("queryName", None, "Spark's own: the name of a query", "stream"),
    Option("path", None, "taken from `save(...)`, and without effect"),
)  # fmt: skip
"""All options besides those of the client, which have `kafka.` in front."""
