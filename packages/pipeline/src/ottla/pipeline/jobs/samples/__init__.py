"""Sample data for each kind of pipeline, and a declaration to start from."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration_files import UnknownKind
from ottla.producer import ProducerRecord


def sample_kinds() -> list[str]:
    """Return the kinds that have samples."""
    return sorted(
        file.name.removesuffix(".toml") for file in files(__package__).iterdir() if _is_toml(file.name)
    )


PRINTED = "127.0.0.1:9092"
"""The broker in the declarations of samples."""


def sample_declaration(kind: str, bootstrap: str = PRINTED) -> str:
    """Return a declaration as text. Raises UnknownKind."""
    if kind not in sample_kinds():
        raise UnknownKind(kind, sample_kinds())
    text = files(__package__).joinpath(f"{kind}.toml").read_text(encoding="utf-8")
    return text.replace(PRINTED, bootstrap)


def send_sample(kind: str, bootstrap: str, topic: str | None, count: int) -> str:
    """Fill a topic and return a summary. Raises UnknownKind, PipelineError for errors of the broker."""
    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    if kind not in sample_kinds():
        raise UnknownKind(kind, sample_kinds())
    from ottla.pipeline.jobs.samples.sample_data import SAMPLES, send_tables

    if kind not in SAMPLES:
        return send_tables(count)
    sample = SAMPLES[kind]
    topic = topic or sample.topic
    try:
        _send(bootstrap, sample.records(topic, count))
    except (ClientError, KafkaError) as error:
        raise PipelineError(" ".join(str(error).split())) from None
    return sample.summary.format(count=count, topic=topic, bad=count // sample.bad_every)


def _send(bootstrap: str, records: Iterable[ProducerRecord]) -> None:
    from ottla.producer import SyncProducer

    with SyncProducer(bootstrap_servers=bootstrap) as producer:
        sent = [
            producer.send(
                record.topic,
                record.value,
                record.key,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
            for record in records
        ]
        for acknowledgement in sent:
            acknowledgement.result()


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")
