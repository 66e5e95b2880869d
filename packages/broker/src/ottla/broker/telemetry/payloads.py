"""The payload of a push: bounded decompression, and OpenTelemetry's MetricsData as plain values.

It runs on a thread. A payload of a stranger may be a bomb or nonsense: neither becomes more than
`telemetry.max.bytes`, and a value more than `MOST_VALUES` is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.metrics.registry import MetricName
from ottla.protocol.errors import InvalidRecord, TelemetryTooLarge
from ottla.protocol.records import decompress
from ottla.protocol.records.errors import DecompressedTooLarge, UnreadableRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_VALUES: Final = 5_000
"""Values of one push."""
MOST_METRICS: Final = 20_000
"""Metrics and scopes of one push that are looked at; hundreds of thousands may be empty."""
MOST_NAME_CHARACTERS: Final = 200
MOST_ATTRIBUTES: Final = 16
"""Attributes of a resource, and of a point, that become labels; further ones are not looked at."""
MOST_RESOURCES: Final = 16
"""Resources of one push that are read, and that a collector is handed."""
MOST_FORWARDED_ATTRIBUTES: Final = 128
"""Attributes of a resource that a collector is handed: as many as OpenTelemetry's own SDKs keep."""
GROUP: Final = "kafka.client"
_OF_KAFKA: Final = "org.apache.kafka."
_DELTA: Final = 1
_COMPOSITE: Final = (None, "array_value", "kvlist_value")
"""Kinds of values that are no label: the text of nested lists takes hundreds of times their size."""
_NOT_A_LABEL: Final = re.compile(r"[^a-zA-Z0-9_]")


class Measured(NamedTuple):
    """A value of a client; a delta is what was counted since the last push."""

    name: MetricName
    value: float
    is_delta: bool


class Opened(NamedTuple):
    """A payload that was read: its values, and all of it for a collector, empty where there is none."""

    values: list[Measured]
    forwarded: bytes = b""


def read(
    payload: bytes, compression_type: int, max_bytes: int, labels: Mapping[str, str] | None = None
) -> Opened:
    """Return what a payload has. Raises TelemetryTooLarge and InvalidRecord.

    `labels` are attributes for a collector, beside those that the client has given its resource.
    """
    if not payload:
        return Opened([])
    data = _unfolded(payload, compression_type, max_bytes)
    found: list[Measured] = []
    for measured in _values(data):
        if len(found) == MOST_VALUES:
            break
        if math.isfinite(measured.value):
            found.append(measured)
    return Opened(found, b"" if labels is None else _labelled(data, labels))


def _unfolded(payload: bytes, compression_type: int, max_bytes: int) -> Any:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    data = MetricsData()
    try:
        data.ParseFromString(bytes(decompress(compression_type, payload, max_bytes=max_bytes)))
    except DecompressedTooLarge as error:
        raise TelemetryTooLarge(str(error)) from None
    except (UnreadableRecords, DecodeError) as error:
        raise InvalidRecord(f"pushed metrics cannot be read: {error}") from None
    return data


def _labelled(data: Any, labels: Mapping[str, str]) -> bytes:
    """Serialize metrics with what the broker knows about their client, in place of what it says itself."""
    del data.resource_metrics[MOST_RESOURCES:]  # each grows by the labels; clients send one
    for of_resource in data.resource_metrics:
        attributes = of_resource.resource.attributes
        del attributes[MOST_FORWARDED_ATTRIBUTES:]
        kept = [attribute for attribute in attributes if attribute.key not in labels]
        del attributes[:]
        attributes.extend(kept)
        for name, value in labels.items():
            attributes.add(key=name).value.string_value = value
    return bytes(data.SerializeToString())


def _values(data: Any) -> Iterator[Measured]:
    for metric, resource in islice(_metrics(data), MOST_METRICS):
        if metric is not None:
            yield from _of_metric(metric, resource)


def _metrics(data: Any) -> Iterator[tuple[Any, tuple[tuple[str, str], ...]]]:
    """Iterate over the metrics with the labels of their resources; None stands for a scope."""
    for of_resource in islice(data.resource_metrics, MOST_RESOURCES):
        resource = _attributes(of_resource.resource.attributes)
        for scope in of_resource.scope_metrics:
            yield None, resource
            for metric in scope.metrics:
                yield metric, resource


def _of_metric(metric: Any, resource: tuple[tuple[str, str], ...]) -> Iterator[Measured]:
    kind, name = metric.WhichOneof("data"), metric.name[:MOST_NAME_CHARACTERS]
    if kind in ("gauge", "sum"):
        of_kind = getattr(metric, kind)
        is_delta = kind == "sum" and of_kind.aggregation_temporality == _DELTA
        for point in of_kind.data_points:
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            yield Measured(_name(name, resource, point), float(value), is_delta)
    elif kind == "histogram":
        is_delta = metric.histogram.aggregation_temporality == _DELTA
        for point in metric.histogram.data_points:
            yield Measured(_name(f"{name}.count", resource, point), float(point.count), is_delta)
            yield Measured(_name(f"{name}.sum", resource, point), float(point.sum), is_delta)


def _name(name: str, resource: tuple[tuple[str, str], ...], point: Any) -> MetricName:
    """Name a metric: `org.apache.kafka.producer.record.send.rate` is `record.send.rate` of the producer."""
    kind, _, rest = name.removeprefix(_OF_KAFKA).partition(".")
    labels = dict((*resource, *_attributes(point.attributes)))
    return MetricName(GROUP, kind, rest, tuple(sorted(labels.items())[:MOST_ATTRIBUTES]))


def _attributes(attributes: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_NOT_A_LABEL.sub("_", attribute.key[:MOST_NAME_CHARACTERS]), _text(attribute.value))
        for attribute in islice(attributes, MOST_ATTRIBUTES)
        if attribute.key
    )


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    return "" if kind in _COMPOSITE else str(getattr(value, kind))[:MOST_NAME_CHARACTERS]
