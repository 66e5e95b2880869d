"""Sample data for each kind of pipeline, and a declaration to start from."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration_files import UnknownKind
from ottla.producer import ProducerRecord

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig


def sample_kinds() -> list[str]:
    """Return the kinds that have samples."""
    return sorted(
        file.name.removesuffix(".toml") for file in files(__package__).iterdir() if _is_toml(file.name)
    )


PRINTED = "127.0.0.1:9092"
"""The broker in the declarations of samples."""


def sample_declaration(kind: str, bootstrap: str | None = PRINTED, profile: str | None = None) -> str:
    """Return a declaration as text, with brokers, a profile or both. Raises UnknownKind."""
    if kind not in sample_kinds():
        raise UnknownKind(kind, sample_kinds())
    text = files(__package__).joinpath(f"{kind}.toml").read_text(encoding="utf-8")
    named = {"bootstrap_servers": bootstrap, "profile": profile}
    lines = [f'{name} = "{value}"' for name, value in named.items() if value is not None]
    return text.replace(f'bootstrap_servers = "{PRINTED}"', "\n".join(lines))


def send_sample(
    kind: str, bootstrap: str, topic: str | None, count: int, client: ClientConfig | None = None
) -> str:
    """Fill a topic and return a summary. Raises UnknownKind, PipelineError for errors of the broker.

    `client` has the login.
    """
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
        _send(bootstrap, client, sample.records(topic, count))
    except (ClientError, KafkaError) as error:
        raise PipelineError(" ".join(str(error).split())) from None
    return sample.summary.format(count=count, topic=topic, bad=count // sample.bad_every)


def _send(bootstrap: str, client: ClientConfig | None, records: Iterable[ProducerRecord]) -> None:
    from ottla.client.config import ClientConfig
    from ottla.producer import SyncProducer

    with SyncProducer(bootstrap_servers=bootstrap, client=client or ClientConfig()) as producer:
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
