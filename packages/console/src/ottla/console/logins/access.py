"""The rule of what a person may see and do: grants of a role over clusters, topics and groups. Pure.

Routes ask `decision` before their page, changes before they are planned and before they are done, and
`ShownCluster` leaves out that which its viewer may not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Final, Literal

from ottla.admin import ClusterState, MemberDescription
from ottla.admin.groups import GroupProgress

ALL: Final = ("*",)
Decision = Literal["allowed", "refused", "hidden"]


class Role(IntEnum):
    """A viewer reads, an operator makes changes, an administrator deletes and reads masked data."""

    VIEWER = 1
    OPERATOR = 2
    ADMINISTRATOR = 3


ROLES: Final = {role.name.lower(): role for role in Role}


@dataclass(frozen=True, slots=True)
class Need:
    """The right that a page or a change needs: a role, and the names that it is about.

    Without a cluster it is a right over any; `is_whole` is one over all topics and groups of the cluster.
    """

    role: Role = Role.VIEWER
    cluster: str | None = None
    topic: str | None = None
    group: str | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A role over the clusters, topics and groups that patterns with `*` name."""

    role: Role
    clusters: tuple[str, ...] = ALL
    topics: tuple[str, ...] = ALL
    groups: tuple[str, ...] = ALL

    @property
    def is_whole(self) -> bool:
        """Whether it is over all topics and groups."""
        return "*" in self.topics and "*" in self.groups

    def covers(self, need: Need) -> bool:
        """Whether it gives the right that is needed."""
        return (
            self.role >= need.role
            and (need.cluster is None or _is_named(need.cluster, self.clusters))
            and (need.topic is None or _is_named(need.topic, self.topics))
            and (need.group is None or _is_named(need.group, self.groups))
            and (not need.is_whole or self.is_whole)
        )


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person at a browser, or a program with a token: the name, and the grants.

    `identity` is one for each of them: people of a provider choose names that others may have here.
    """

    name: str
    grants: tuple[Grant, ...] = ()
    is_logged_in: bool = True
    identity: str = ""

    def may(self, need: Need) -> bool:
        """Whether a right is granted."""
        return any(grant.covers(need) for grant in self.grants)

    def role_in(self, cluster: str, topic: str | None = None) -> Role | None:
        """Return the highest role over a cluster, or a topic of it; None without any."""
        need = Need(cluster=cluster, topic=topic)
        return max((grant.role for grant in self.grants if grant.covers(need)), default=None)


OWNER: Final = Viewer("", (Grant(Role.ADMINISTRATOR),), is_logged_in=False)
"""The person at a console without logins, which serves its own machine: all is theirs."""


def decision(viewer: Viewer, need: Need) -> Decision:
    """Return whether a viewer is allowed something, is refused it, or may not even learn that it exists."""
    if viewer.may(need):
        return "allowed"
    seen = replace(need, role=Role.VIEWER, is_whole=False)
    return "refused" if viewer.may(seen) else "hidden"


def _is_named(name: str, patterns: Iterable[str]) -> bool:
    return any(pattern == "*" or fnmatchcase(name, pattern) for pattern in patterns)


# --- the needs of routes

Needs = Callable[[Mapping[str, str], Mapping[str, str]], Need | None]
"""Returns the right that a request needs, from the names in its path and its query; None: everybody's."""


def everybody(_: Mapping[str, str], __: Mapping[str, str]) -> None:
    """Need nothing, not even a login."""


def a_login(_: Mapping[str, str], __: Mapping[str, str]) -> Need:
    """Need a role over any cluster: the page itself leaves out the others."""
    return Need()


def a_cluster(path: Mapping[str, str], _: Mapping[str, str]) -> Need:
    """Need to see a part of the cluster of the path."""
    return Need(cluster=path["cluster"])


def a_whole_cluster(path: Mapping[str, str], _: Mapping[str, str]) -> Need:
    """Need to see all topics and groups of the cluster of the path."""
    return Need(cluster=path["cluster"], is_whole=True)


def an_operator(path: Mapping[str, str], _: Mapping[str, str]) -> Need:
    """Need to operate the whole cluster of the path."""
    return Need(Role.OPERATOR, path["cluster"], is_whole=True)


def an_administrator(path: Mapping[str, str], _: Mapping[str, str]) -> Need:
    """Need to administer the whole cluster of the path, or all clusters where it names none."""
    return Need(Role.ADMINISTRATOR, path.get("cluster"), is_whole=True)


def a_topic(path: Mapping[str, str], _: Mapping[str, str]) -> Need:
    """Need to see the topic of the path."""
    return Need(cluster=path["cluster"], topic=path["topic"])


def a_group(path: Mapping[str, str], query: Mapping[str, str]) -> Need:
    """Need to see the group that the query names."""
    return Need(cluster=path["cluster"], group=query.get("name", ""))


def a_named_group(path: Mapping[str, str], _: Mapping[str, str]) -> Need:
    """Need to see the group that the path names."""
    return Need(cluster=path["cluster"], group=path.get("name", ""))


# --- that which is left out


def seen_state(viewer: Viewer, cluster: str, state: ClusterState) -> ClusterState:
    """Return a cluster without the topics that a viewer may not see."""
    if viewer.may(Need(cluster=cluster, is_whole=True)):
        return state
    sees = _topics_of(viewer.grants, cluster).match
    seen = {topic for topic in {health.partition.topic for health in state.partitions} if sees(topic)}
    return replace(
        state,
        partitions=tuple(health for health in state.partitions if health.partition.topic in seen),
        min_insync_replicas={
            topic: least for topic, least in state.min_insync_replicas.items() if topic in seen
        },
        log_dirs=tuple(
            replace(
                log_dir,
                replicas=tuple(replica for replica in log_dir.replicas if replica.partition.topic in seen),
            )
            for log_dir in state.log_dirs
        ),
    )


@lru_cache(maxsize=256)
def _topics_of(grants: tuple[Grant, ...], cluster: str) -> re.Pattern[str]:
    """Return the topics that grants cover as one pattern: a cluster may have tens of thousands."""
    found = {topic for grant in grants if grant.covers(Need(cluster=cluster)) for topic in grant.topics}
    return re.compile("|".join(map(translate, sorted(found))) or "(?!)")


def seen_progress(viewer: Viewer, cluster: str, progress: GroupProgress) -> GroupProgress:
    """Return the progress of a group without the topics that a viewer may not see."""
    if viewer.may(Need(cluster=cluster, is_whole=True)):
        return progress

    def is_seen(topic: str) -> bool:
        return viewer.may(Need(cluster=cluster, topic=topic))

    def seen_of(member: MemberDescription) -> MemberDescription:
        return replace(
            member,
            partitions=tuple(part for part in member.partitions if is_seen(part.topic)),
            target=None
            if member.target is None
            else tuple(part for part in member.target if is_seen(part.topic)),
            topics=tuple(filter(is_seen, member.topics)),
            topic_pattern=None,
        )

    description = replace(
        progress.description,
        members=tuple(map(seen_of, progress.description.members)),
        subtopologies=tuple(
            replace(
                part,
                sources=tuple(filter(is_seen, part.sources)),
                changelogs=tuple(filter(is_seen, part.changelogs)),
            )
            for part in progress.description.subtopologies
        ),
    )
    partitions = tuple(
        replace(
            found,
            owner=None if found.owner is None else seen_of(found.owner),
            owners=tuple(map(seen_of, found.owners)),
        )
        for found in progress.partitions
        if is_seen(found.partition.topic)
    )
    return replace(progress, description=description, partitions=partitions)
