"""Metrics pages of a cluster's brokers: they have what no API of Kafka has, such as records in hand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.admin.groups import GroupProgress
from ottla.admin.share_meters import acquired_by_group
from ottla.protocol.topics import TopicPartition
from ottla.registry.rest import RestClient, Service, ServiceFailed

Counts = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Acquired:
    """The records that members of share groups hold, by group and partition.

    `failures` are the reasons of pages that were not read: of partitions that their brokers lead nothing is
    known.
    """

    by_group: Mapping[str, Counts]
    failures: tuple[str, ...] = ()


class MetricsPages:
    """The pages of one cluster's brokers. Each answer is bounded in time and length, and asked at one go."""

    def __init__(self, service: Service) -> None:
        self._rest = RestClient(service)

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    async def acquired(self) -> Acquired:
        """Return what members of share groups hold; a page that cannot be read is named, and others count."""
        pages = await asyncio.gather(*map(self._page, self._rest.urls))
        found: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for page in pages:
            if not isinstance(page, str):
                for group, counts in page.items():
                    found[group].update(counts)
        return Acquired(dict(found), tuple(page for page in pages if isinstance(page, str)))

    async def _page(self, url: str) -> Mapping[str, Counts] | str:
        """Return what one page has, or the reason why it has nothing."""
        try:
            text = await self._rest.get_text(url, "metrics")
            return await asyncio.to_thread(acquired_by_group, text)  # a page may have megabytes
        except ServiceFailed as error:
            return str(error)
        except ValueError as error:
            return f"the {self._rest.name} at {url} cannot be read: {error}"


@dataclass(frozen=True, slots=True)
class GroupAcquired:
    """The records that members of one share group hold, of the partitions of which that is known."""

    counts: Counts
    is_whole: bool

    @property
    def total(self) -> int | None:
        """The sum; None where no partition is known."""
        return sum(self.counts.values()) if self.counts else None


def group_acquired(progress: GroupProgress, acquired: Acquired | None) -> GroupAcquired:
    """Return what a group holds of the partitions of its progress: those that the viewer may see. Pure."""
    known = {} if acquired is None else acquired.by_group.get(progress.description.name, {})
    seen = [found.partition for found in progress.partitions]
    counts = {partition: known[partition] for partition in seen if partition in known}
    return GroupAcquired(counts, len(counts) == len(seen))
