"""The options of the source, for whoever reads them and for the reference."""

from __future__ import annotations

from ottla.pipeline.options import Option

WHICH = (
    Option("subscribe", None, "the topics to read, with commas between them"),
    Option("subscribePattern", None, "a regular expression (Python's); topics in whose names it is found"),
    Option("assign", None, 'single partitions, as JSON: `{"orders": [0, 1]}`'),
)

WHERE = (
    Option(
        "startingOffsetsByTimestamp", None,
        'where to begin, as JSON: `{"orders": {"0": 1767222000000}}`, times in milliseconds. Of each '
        "partition the first record with that time or a later one is the first. Every partition has "
        "to be named",
    ),
    Option(
        "startingTimestamp", None,
        "the same time for all partitions, in milliseconds. It wins over `startingOffsetsByTimestamp`, "
        "and that over `startingOffsets`",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "error",
        "what becomes of a partition that has no record so late: `error`, or `latest`: begin behind its last",
    ),
    Option(
        "endingOffsets", "latest",
        "where to end: `latest`, or offsets as JSON, which are not read any more; `-1` is the end "
        "of a partition",
        "batch",
    ),
    Option(
        "endingOffsetsByTimestamp", None,
        "where to end, as JSON like `startingOffsetsByTimestamp`; records from that time on are not read",
        "batch",
    ),
    Option(
        "endingTimestamp", None,
        "the same time for all partitions. It wins over `endingOffsetsByTimestamp`, and that over "
        "`endingOffsets`",
        "batch",
    ),
)  # fmt: skip

STARTING_OFFSETS = (
    'where to begin: `earliest`, `latest`, or offsets as JSON, `{"orders": {"0": 23, "1": -2}}`: `-2` is the '
    "first record of a partition, `-1` behind its last. Every partition has to be named"
)

FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss", "true",
    "whether the query ends when records are gone that it was to read: deleted by retention, or with their "
    "topic. With `false` it says so in its log and goes on",
)  # fmt: skip

INCLUDE_HEADERS = Option("includeHeaders", "false", "whether there is a column `headers`")

MIN_PARTITIONS = Option(
    "minPartitions", None,
    "at least about so many tasks, where there is enough to read; otherwise one for each partition",
)  # fmt: skip

VALUES = (
    Option(
        "value.format", "raw",
        "how values are written: `json`, `msgpack`, `avro`, or `raw`: they stay bytes. Others "
        "become a column `value` with the fields of `value.schema`",
    ),
    Option(
        "value.schema", None,
        "the fields of values: as Spark writes schemas, `drink STRING, price DOUBLE`; for Avro its "
        "schema as JSON",
    ),
    Option(
        "value.mode", "permissive",
        "what becomes of a value that is not so: `permissive`: it is null, `value_raw` has its bytes and "
        "`value_error` the reason; `dropmalformed`: its row is left out; `failfast`: the query ends",
    ),
)  # fmt: skip

OPTIONS = (
    *WHICH,
    Option(
        "startingOffsets", None,
        STARTING_OFFSETS + ". A batch begins with `earliest` unless told otherwise, a new stream with "
        "`latest`; "
        "a stream that goes on begins where its checkpoint says",
    ),
    *WHERE,
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    Option(
        "maxOffsetsPerTrigger", None,
        "at most about so many offsets in a micro-batch, shared among partitions by how far each is behind",
        "stream",
    ),
    Option(
        "minOffsetsPerTrigger", None, "wait until there are so many new offsets, but no longer than "
        "`maxTriggerDelay`", "stream",
    ),
    Option(
        "maxTriggerDelay", "15m", "how long `minOffsetsPerTrigger` may wait: `30s`, `200ms`, `1h`", "stream",
    ),
    MIN_PARTITIONS,
    Option("maxRecordsPerPartition", None, "at most so many offsets in a task; longer ranges are cut"),
    *VALUES,
    Option(
        "kafkaConsumer.pollTimeoutMs", "120000",
        "how long, in milliseconds, a task waits for records before it fails",
    ),
    Option("fetchOffset.numRetries", "3", "how often the driver asks again for offsets after an error"),
    Option("fetchOffset.retryIntervalMs", "10", "how long, in milliseconds, it waits before it asks again"),
    Option("groupIdPrefix", None, "taken, and without effect: no group is joined"),
    Option("path", None, "taken from `load(...)`, and without effect"),
)  # fmt: skip
"""All options besides those of the client, which have `kafka.` in front."""
