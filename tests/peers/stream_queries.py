"""A stream query without Spark: a topic in memory, a manual clock, and a checkpoint as a list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import NullType, StructField, StructType

from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offsets import Nested, Offsets
from ottla.pipeline.source.readers import IDLE_S, ReadTask, StreamReader
from ottla.pipeline.source.stream_offsets import Clock
from ottla.pipeline.source.topic_offsets import Selected, TopicOffsets
from ottla.protocol.topics import TopicPartition

SCHEMA = StructType(
    [
        StructField(name, NullType())
        for name in ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    ]
)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
Read = list[tuple[TopicPartition, int, int]]


@dataclass
class Topic(TopicOffsets):
    """A topic in memory: start and end of each partition."""

    ends: Offsets
    begins: Offsets = field(default_factory=dict)
    grows: Offsets = field(default_factory=dict)
    """Growth of each partition per lookup of its end, as if a producer wrote."""
    behind: int = 0
    """The number of further answers from a broker that has no records yet."""
    unknown: int = 0
    """The number of further answers from a broker that knows no topic yet."""
    hidden: frozenset[TopicPartition] = frozenset()
    """Partitions that no broker reports."""
    topic_id: str | None = None
    """The id of the topic; None for brokers without ids."""
    stale_ids: list[str] = field(default_factory=list)
    """Ids in the next answers, from a broker that lags behind."""
    agreed: dict[str, str | None] | None = None
    """The answer of `agreed_ids`; None: brokers do not agree, or one of them does not answer."""
    asked: int = 0
    """The number of lookups of partitions."""
    closed: bool = False

    def selected(self, *, all_there: bool = True) -> Selected:
        self.asked += 1
        if self.unknown and not all_there:
            self.unknown -= 1
            return Selected(frozenset(), {})
        topic_id = self.stale_ids.pop() if self.stale_ids else self.topic_id
        ids = {} if topic_id is None else {ZERO.topic: topic_id}
        return Selected(frozenset(self.ends) - self.hidden, ids)

    def agreed_ids(self, topics: frozenset[str]) -> dict[str, str | None] | None:
        return self.agreed

    def recreate(self, ends: Offsets, topic_id: str) -> None:
        """Delete the topic and create it again, with other records."""
        self.ends, self.topic_id = ends, topic_id

    def offsets(self, edge: Edge, partitions: Iterable[TopicPartition]) -> Offsets:
        wanted = list(partitions)
        if edge is Edge.EARLIEST:
            return {each: self.begins.get(each, 0) for each in wanted}
        if wanted and self.behind:
            self.behind -= 1
            return dict.fromkeys(wanted, 0)
        found = {each: self.ends[each] for each in wanted}
        for each in wanted:
            self.ends[each] += self.grows.get(each, 0)
        return found

    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return dict.fromkeys(times)

    def close(self) -> None:
        self.closed = True


class ManualClock(Clock):
    """A clock that advances only by waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_ms(self) -> float:
        return 1_000 * sum(self.waits)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    def long(self) -> float:
        """Return the seconds of repeated lookups since the last call."""
        waited = sum(each for each in self.waits if each != IDLE_S)
        self.waits.clear()
        return round(waited, 3)


class Query:
    """Spark's use of a reader: it stores the ends of batches, and asks again after a restart."""

    def __init__(self, topic: Topic, **options: object) -> None:
        self.topic = topic
        self.options = {
            "kafka.bootstrap.servers": "localhost:9092",
            "subscribePattern": "t",
            **{name: str(value) for name, value in options.items()},
        }
        self.log: list[str] = []
        self.clock = ManualClock()
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        """Create a new reader, as another process would."""
        self.reader = StreamReader(self.options, SCHEMA, self.topic, self.clock)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Store the next batch; return whether there is one."""
        start = _through_json(self.reader.initialOffset()) if not self.log else json.loads(self.log[-1])
        end = json.dumps(self.reader.latestOffset(start, limit or ReadAllAvailable()))
        if self.log and end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def read(self) -> Read:
        """Return the ranges that the tasks of the last batch read, in any process."""
        start = json.loads(self.log[-2]) if len(self.log) > 1 else _through_json(self.reader.initialOffset())
        pieces = self.reader.partitions(start, json.loads(self.log[-1]))
        return [
            (each.range.partition, each.range.start, each.range.end)
            for each in pieces
            if isinstance(each, ReadTask)
        ]

    def batch(self) -> Read:
        """Plan and read."""
        return self.read() if self.plan() else []


def _through_json(offset: Nested) -> Nested:
    found: Nested = json.loads(json.dumps(offset))
    return found
