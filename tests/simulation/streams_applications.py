"""Applications of streams groups: their topologies, the topics they need, and the tasks that these make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from ottla.broker.groups.streams.tasks import TaskId
from ottla.protocol.messages.streams_group_describe import TopicInfo
from ottla.protocol.messages.streams_groups import Subtopology, Topology

Input: TypeAlias = tuple[UUID, int]
"""A partition that a task reads, by the id of its topic."""
Partitions: TypeAlias = Callable[[str], "list[Input]"]
"""Returns the partitions of a topic; none of one that does not exist."""


@dataclass(frozen=True, eq=False)
class Application:
    """A version of a program."""

    name: str
    topology: Topology

    def __str__(self) -> str:
        return self.name

    @property
    def sources(self) -> list[str]:
        """The topics that must exist before the program runs."""
        return sorted({name for part in self.topology.subtopologies for name in part.source_topics})

    def internal(self, partitions: Partitions) -> dict[str, int]:
        """Return how many partitions each internal topic has to have, where the sources exist."""
        needed: dict[str, int] = {}
        for part in self.topology.subtopologies:  # each after those that write what it reads
            tasks = max(needed.get(name, len(partitions(name))) for name in _read(part))
            needed |= dict.fromkeys(part.repartition_sink_topics, tasks)
            needed |= {topic.name: tasks for topic in part.state_changelog_topics}
        return needed

    def inputs(self, task: TaskId, partitions: Partitions) -> list[Input]:
        """Return the partitions that a task reads."""
        part = next(part for part in self.topology.subtopologies if part.subtopology_id == task[0])
        return [one for name in _read(part) for one in partitions(name) if one[1] == task[1]]

    def tasks(self, partitions: Partitions) -> list[TaskId]:
        """Return all tasks, of topics that are as the topology needs them."""
        return [
            TaskId(part.subtopology_id, number)
            for part in self.topology.subtopologies
            for number in range(max(len(partitions(name)) for name in _read(part)))
        ]


def _read(part: Subtopology) -> Iterator[str]:
    yield from part.source_topics
    for topic in part.repartition_source_topics:
        yield topic.name


COUNTING: Final = Application(
    "counting",
    Topology(
        epoch=0,
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=["words"], repartition_sink_topics=["by-word"]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name="by-word")],
                state_changelog_topics=[TopicInfo(name="counts")],
            ),
        ],
    ),
)
JOINING: Final = Application(
    "joining",
    Topology(
        epoch=1,
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=["words", "lines"],
                state_changelog_topics=[TopicInfo(name="joined")],
            ),
            Subtopology(subtopology_id="1", source_topics=["names"]),
        ],
    ),
)
APPLICATIONS: Final = (COUNTING, JOINING)
SOURCES: Final = ("words", "lines", "names")
