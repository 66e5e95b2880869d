"""Export metrics of clients to OpenTelemetry. Needs its API (`pip install ottla-client[opentelemetry]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from opentelemetry import metrics as api
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ottla.client.metrics import Description, Metrics, Source


class OpenTelemetryMetrics:
    """Registers the metrics of clients with a meter, under Kafka's names.

        exporter = OpenTelemetryMetrics()
        exporter.add(producer.metrics, {"client_id": "shop"})

    `record_send_total` of a producer becomes `kafka.producer.record_send_total`. Values are read when the
    meter's reader collects; nothing runs in between.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter if meter is not None else api.get_meter("ottla.client")
        self._sources: list[Source] = []
        self._instruments: set[str] = set()

    def add(self, metrics: Metrics, attributes: Mapping[str, str] | None = None) -> None:
        """Export the metrics of a client; attributes distinguish it from other clients."""
        self._sources.append(Source(metrics, attributes or {}))
        for description in metrics.all_descriptions():
            self._instrument(metrics.prefix, description)

    def remove(self, metrics: Metrics) -> None:
        """Stop exporting the metrics of a client."""
        self._sources = [source for source in self._sources if source.metrics is not metrics]

    def _instrument(self, prefix: str, description: Description) -> None:
        name = ".".join(("kafka", prefix, *description.path))
        if name in self._instruments:
            return
        self._instruments.add(name)
        create = (
            self._meter.create_observable_counter
            if description.kind == "counter"
            else self._meter.create_observable_gauge
        )
        create(name, [partial(self._observe, prefix, description)], description=description.meaning)

    def _observe(self, prefix: str, description: Description, _: CallbackOptions) -> Iterable[Observation]:
        for source in tuple(self._sources):
            if source.metrics.prefix != prefix:
                continue
            for sample in source.samples():
                if sample.description == description:
                    yield Observation(sample.value, dict(sample.tags))
