"""Sample data for each kind of pipeline, and a declaration to start from."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Protocol

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.job_kinds import UnknownKind


class Sample(Protocol):
    """The interface of a sample module."""

    TOPIC: str

    def send(self, bootstrap: str, topic: str, count: int) -> str:
        """Send records and return a one-line summary."""


def sample_kinds() -> list[str]:
    """Return the kinds that have samples."""
    return sorted(
        each.name.removesuffix(".toml") for each in files(__package__).iterdir() if _is_toml(each.name)
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
    sample: Sample = import_module(f"{__package__}.{kind}")
    try:
        return sample.send(bootstrap, topic or sample.TOPIC, count)
    except (ClientError, KafkaError) as error:
        raise PipelineError(" ".join(str(error).split())) from None


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")
