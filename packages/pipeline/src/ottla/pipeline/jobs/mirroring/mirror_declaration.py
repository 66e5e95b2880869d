"""The declaration of a mirror: topics, clusters, groups and options, and values derived from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import Field

from ottla.pipeline.jobs.declaration import (
    Job,
    Mistake,
    Names,
    Seconds,
    Table,
    Target,
    Topics,
    has_backreference,
    whole_name_pattern,
)
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.mirroring.cluster_pair import ClusterPair
from ottla.pipeline.jobs.mirroring.offset_mapping import MAPPING_TOPIC
from ottla.protocol.topics import INTERNAL_TOPICS

_NAME = re.compile(r"[A-Za-z0-9._-]*\{topic\}[A-Za-z0-9._-]*|[A-Za-z0-9._-]+")
_ORDERLESS = ("minpartitions", "maxrecordsperpartition")
_KNOWN = ("failondataloss",)
_SPARKS = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "kafkaconsumer.polltimeoutms")
"""Options of the data source that a mirror supports; the second group only with Spark."""


class Groups(Table):
    """Groups of the source whose offsets are translated to the target, so that they can move there."""

    pattern: str = Field(examples=["billing|orders-.*"], min_length=1)
    """A regular expression that has to match whole names."""
    every: Seconds = 30.0


class MirrorDeclaration(Job):
    """The declaration of a mirror; `Mirror` runs it."""

    kind: Literal["mirror"] = "mirror"
    engine: Literal["sdk", "spark"] = "sdk"
    """The engine that copies: clients in one process, or Spark with a task for each partition."""
    source: Topics
    target: Target
    exclude: Names = Field(default_factory=list, examples=[["tmp-.*"]])
    """Regular expressions: a topic whose whole name matches one of them is not copied."""
    rename: str = "{topic}"
    """The name of a copy; `{topic}` is the name of the original."""
    delivery: Literal["auto", "exactly-once", "dedupe"] = "auto"
    """exactly-once: in transactions, which the target must support. dedupe: without transactions; after a
    kill, records that are already written are found in the copies. auto: exactly-once if possible."""
    mapping_topic: str = Field(MAPPING_TOPIC, pattern=r"^[A-Za-z0-9._-]+$")
    """The topic of the target with the offset mapping and the origins of copies."""
    groups: Groups | None = None
    refresh: Seconds = 30.0
    """The interval between looks for new topics and partitions."""

    # --- checks

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("target", self.target.inspect())
        yield from self._inspect_patterns()
        if not _NAME.fullmatch(self.rename):
            yield Mistake(("rename",), "must be the name of a topic; {topic} stands for that of the original")
        elif "{topic}" not in self.rename and len(self.source.topics) != 1:
            yield Mistake(("rename",), "must contain {topic} if there is more than one topic")
        yield from self._inspect_itself()
        yield from self._inspect_options()

    def _inspect_patterns(self) -> Iterator[Mistake]:
        patterns = [(("exclude", number), text) for number, text in enumerate(self.exclude)]
        if self.groups is not None:
            patterns.append((("groups", "pattern"), self.groups.pattern))  # type: ignore[arg-type]
        for path, text in patterns:
            try:
                re.compile(text)
            except re.error as error:
                yield Mistake(path, f"is not a regular expression: {error}")
                return
        if self.engine == "spark" and self.source.pattern is not None:
            yield from self._inspect_joined()
        for number, name in enumerate(self.source.topics):
            if not self.wants(name):
                yield Mistake(("source", "topics", number), "is excluded, internal, or the mirror's own")

    def _inspect_joined(self) -> Iterator[Mistake]:
        """Yield mistakes in patterns that the data source gets as one."""
        for number, text in enumerate(self.exclude):
            if has_backreference(text):
                yield Mistake(("exclude", number), 'must not contain a backreference with engine = "spark"')
                return
        try:
            re.compile(self.pattern_without(()))
        except re.error as error:
            yield Mistake(
                ("exclude",), (f'cannot be combined with source.pattern for engine = "spark": {error}')
            )

    def _inspect_itself(self) -> Iterator[Mistake]:
        same = self.source.servers == self.target.servers
        names = [name for name in self.source.topics if self.clusters().copy_name(name) == name]
        if same and (names or (self.source.pattern and self.rename == "{topic}")):
            yield Mistake(
                ("target", "bootstrap_servers"), "is the source: topics would be copied into themselves"
            )

    def _inspect_options(self) -> Iterator[Mistake]:
        if self.source.starting_offsets not in ("earliest", "latest"):
            yield Mistake(("source", "starting_offsets"), "must be earliest or latest")
        for name in self.source.options:
            said = self._refusal(name.lower())
            if said is not None:
                yield Mistake(("source", "options", name), said)

    def _refusal(self, option: str) -> str | None:
        if option.startswith("kafka.") or option in _KNOWN:
            return None
        if option in _ORDERLESS:
            return "would split partitions and lose the order of their records"
        if option in _SPARKS:
            return None if self.engine == "spark" else 'is for engine = "spark" only'
        return "does not apply: a mirror copies records unchanged from its own position"

    # --- derived values

    def wants(self, topic: str) -> bool:
        """Whether the name of a topic is selected for copying."""
        if topic in INTERNAL_TOPICS or topic == self.mapping_topic:
            return False
        if any(re.fullmatch(pattern, topic) for pattern in self.exclude):
            return False
        pattern = self.source.pattern
        return topic in self.source.topics if pattern is None else bool(re.fullmatch(pattern, topic))

    def pattern_without(self, names: Iterable[str]) -> str:
        """Return the pattern of the selected topics except some names, for the data source."""
        others = sorted(map(re.escape, {*INTERNAL_TOPICS, self.mapping_topic, *names}))
        return whole_name_pattern(self.source.pattern or "", (*self.exclude, *others))

    def clusters(self) -> ClusterPair:
        """Return the connections to both clusters."""
        return ClusterPair(
            mirror=self.name,
            source=self.source.properties(),
            target=self.target.properties(),
            mapping_topic=self.mapping_topic,
            rename=self.rename,
        )

    @property
    def fails_on_data_loss(self) -> bool:
        """Whether the mirror fails if records are lost before they are copied."""
        options = {name.lower(): str(value).lower() for name, value in self.source.options.items()}
        return options.get("failondataloss", "true") != "false"
