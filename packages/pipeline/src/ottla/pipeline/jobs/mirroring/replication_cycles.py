"""Keeps mirrors from going round in circles: what is a copy of a cluster is not copied to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_mapping import Origin


class ReplicationCycle(PipelineError):
    """Records would go round between clusters, for ever."""

    def __init__(self, topic: str, mirror: str) -> None:
        super().__init__(
            f"topic {topic!r} is itself a copy that mirror {mirror!r} makes, of records that come from the "
            "target: they would go round for ever. Where clusters are mirrored both ways, give copies names "
            'of their own (rename = "north.{topic}")'
        )


def circular_topics(topics: Iterable[str], known: Mapping[str, Origin], target: str) -> dict[str, Origin]:
    """Return which topics came from the target cluster, on whatever way.

    `known` are the origins of the copies in the source cluster.
    """
    return {topic: known[topic] for topic in topics if topic in known and target in known[topic].clusters}


def origins_of(
    copies: Mapping[str, str], known: Mapping[str, Origin], mirror: str, source: str
) -> dict[str, Origin]:
    """Return the origins of copies, by their names; `copies` has those by the names of originals."""
    return {
        copy: Origin(mirror, (*(known[topic].clusters if topic in known else ()), source))
        for topic, copy in copies.items()
    }
