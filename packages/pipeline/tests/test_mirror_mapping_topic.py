"""The mapping topic of a mirror, when brokers are told of it one after the other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.admin import Admin, ConfigEntry
from ottla.client.cluster import NoSuchTopic
from ottla.pipeline.jobs.mirroring import offset_mapping
from ottla.pipeline.jobs.mirroring.offset_mapping import MappingUnreadable, make_mapping_topic


class Target:
    """A cluster, and how often its brokers deny a topic that was created."""

    def __init__(self, denials: int, policy: str = "compact") -> None:
        self.topics = self.configs = self
        self.created: list[str] = []
        self._denials, self._policy = denials, policy

    async def describe(self, *asked: Any) -> list[ConfigEntry]:
        is_of_topic = len(asked) == 2
        if not self.created or (is_of_topic and self._denials > 0):
            self._denials -= is_of_topic
            raise NoSuchTopic("mapping")
        return [ConfigEntry("cleanup.policy", self._policy, "topic", False, False, None)]

    async def create(self, name: str, **_: Any) -> None:
        self.created.append(name)


def test_a_broker_that_has_not_heard_of_the_new_topic_is_asked_again() -> None:
    target = Target(denials=3)

    asyncio.run(make_mapping_topic(cast(Admin, target), "mapping"))

    assert target.created == ["mapping"]


def test_a_topic_that_stays_unknown_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_mapping, "KNOWN_WITHIN_S", 0.1)

    with pytest.raises(NoSuchTopic):
        asyncio.run(make_mapping_topic(cast(Admin, Target(denials=1_000)), "mapping"))


def test_a_topic_that_would_lose_mappings_is_refused() -> None:
    with pytest.raises(MappingUnreadable, match=r"cleanup\.policy=delete"):
        asyncio.run(make_mapping_topic(cast(Admin, Target(denials=0, policy="delete")), "mapping"))
