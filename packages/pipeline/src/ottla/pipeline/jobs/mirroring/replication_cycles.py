"""Detection of replication cycles: a copy of a cluster's topic is not copied back to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_mapping import Origin


class ReplicationCycle(PipelineError):
    """Records would be copied between clusters without end."""

    def __init__(self, topic: str, mirror: str) -> None:
        super().__init__(
            f"topic {topic!r} is itself a copy that mirror {mirror!r} makes, of records that come "
            "from the target: they would be copied without end. If clusters are mirrored in both "
            'directions, rename the copies (rename = "north.{topic}")'
        )


def circular_topics(topics: Iterable[str], known: Mapping[str, Origin], target: str) -> dict[str, Origin]:
    """Return the topics whose records came from the target cluster, directly or through others.

    `known` are the origins of the copies in the source cluster.
    """
    return {topic: known[topic] for topic in topics if topic in known and target in known[topic].clusters}


def origins_of(
    copies: Mapping[str, str], known: Mapping[str, Origin], mirror: str, source: str
) -> dict[str, Origin]:
    """Return the origins of copies by name; `copies` has their names by those of the originals."""
    return {
        copy: Origin(mirror, (*(known[topic].clusters if topic in known else ()), source))
        for topic, copy in copies.items()
    }
