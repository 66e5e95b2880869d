"""The options of the source, for the parser and the reference."""

from __future__ import annotations

from ottla.pipeline.options import Option

WHICH = (
    Option("subscribe", None, "the topics to read, separated by commas"),
    Option(
        "subscribePattern",
        None,
        "a regular expression (Python's) that matches anywhere in the names of the topics to read",
    ),
    Option("assign", None, 'single partitions, as JSON: `{"orders": [0, 1]}`'),
)

WHERE = (
    Option(
        "startingOffsetsByTimestamp", None,
        'the start, as JSON: `{"orders": {"0": 1767222000000}}`, timestamps in milliseconds. Each '
        "partition starts at its first record with that timestamp or a later one. Every partition "
        "has to be named",
    ),
    Option(
        "startingTimestamp", None,
        "one start for all partitions, as a timestamp in milliseconds. It wins over "
        "`startingOffsetsByTimestamp`, which wins over `startingOffsets`",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "error",
        "the handling of a partition without a record that late: `error`, or `latest`, which starts "
        "at its end",
    ),
    Option(
        "endingOffsets", "latest",
        "the end: `latest`, or offsets as JSON, which are excluded; `-1` is the end of a partition",
        "batch",
    ),
    Option(
        "endingOffsetsByTimestamp", None,
        "the end, as JSON like `startingOffsetsByTimestamp`; records from that timestamp on are "
        "excluded",
        "batch",
    ),
    Option(
        "endingTimestamp", None,
        "one end for all partitions. It wins over `endingOffsetsByTimestamp`, which wins over "
        "`endingOffsets`",
        "batch",
    ),
)  # fmt: skip

STARTING_OFFSETS = (
    'the start: `earliest`, `latest`, or offsets as JSON, `{"orders": {"0": 23, "1": -2}}`: `-2` is '
    "the first record of a partition, `-1` its end. Every partition has to be named"
)

FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss", "true",
    "whether the query fails when records that it should read are lost, by retention or with their "
    "topic. With `false` it logs the loss and continues",
)  # fmt: skip

INCLUDE_HEADERS = Option("includeHeaders", "false", "whether there is a column `headers`")

MIN_PARTITIONS = Option(
    "minPartitions", None,
    "the minimum number of tasks, if there is enough to read; by default one for each partition",
)  # fmt: skip

VALUES = (
    Option(
        "value.format", "raw",
        "the format of values: `json`, `msgpack`, `avro`, or `raw` for bytes. The others become a "
        "column `value` with the fields of `value.schema`",
    ),
    Option(
        "value.schema", None,
        "the fields of values, in Spark's form, `drink STRING, price DOUBLE`; for Avro its schema "
        "as JSON",
    ),
    Option(
        "value.mode", "permissive",
        "the handling of a malformed value: `permissive`: it is null, `value_raw` has its bytes and "
        "`value_error` the reason; `dropmalformed`: its row is dropped; `failfast`: the query fails",
    ),
)  # fmt: skip

OPTIONS = (
    *WHICH,
    Option(
        "startingOffsets", None,
        STARTING_OFFSETS
        + ". The default is `earliest` for a batch and `latest` for a new stream; a restarted stream "
        "continues from its checkpoint",
    ),
    *WHERE,
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    Option(
        "maxOffsetsPerTrigger", None,
        "the maximum number of offsets in a micro-batch, divided among partitions by their lag",
        "stream",
    ),
    Option(
        "minOffsetsPerTrigger", None,
        "the number of new offsets that a micro-batch waits for, up to `maxTriggerDelay`", "stream",
    ),
    Option(
        "maxTriggerDelay", "15m", "how long `minOffsetsPerTrigger` may wait: `30s`, `200ms`, `1h`", "stream",
    ),
    MIN_PARTITIONS,
    Option("maxRecordsPerPartition", None, "the maximum offsets in a task; longer ranges are split"),
    *VALUES,
    Option(
        "kafkaConsumer.pollTimeoutMs", "120000",
        "how long a task waits for records before it fails, in milliseconds",
    ),
    Option("fetchOffset.numRetries", "3", "how often the driver retries a lookup of offsets after an error"),
    Option("fetchOffset.retryIntervalMs", "10", "how long it waits before a retry, in milliseconds"),
    Option("groupIdPrefix", None, "accepted without effect: no group is joined"),
    Option("path", None, "set by `load(...)`; has no effect"),
)  # fmt: skip
"""All options except those of the client, which begin with `kafka.`."""
