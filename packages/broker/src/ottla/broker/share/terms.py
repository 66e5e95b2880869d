"""The settings of share groups: where they begin, their limits, and where records go that they give up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.config.group import BY_DURATION, bounded, iso_duration_ms
from ottla.broker.share.partition import ShareLimits

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_MOST_KNOWN: Final = 10_000


class ShareGroupTerms(NamedTuple):
    """The settings of one share group."""

    limits: ShareLimits = ShareLimits()
    auto_offset_reset: str = LATEST
    """`earliest`, `latest`, or milliseconds before the present time."""
    committed_only: bool = False
    dead_letter_topic: str = ""
    """The topic for records that end without being accepted; empty: they have none."""
    copies_dead_letters: bool = False
    """Whether they are copied with key and value."""


class ShareGroupSettings:
    """The settings of each share group: its own, or the broker's."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        group_settings: Callable[[str], Mapping[str, str]],
        has_dead_letters: Callable[[], bool],
    ) -> None:
        """`has_dead_letters` returns whether the cluster's level of share groups has dead-letter topics."""
        self._config = config
        self._group_settings = group_settings
        self._has_dead_letters = has_dead_letters
        self._known: dict[str, tuple[Any, Any, bool, ShareGroupTerms]] = {}

    def __call__(self, group_id: str) -> ShareGroupTerms:
        """Return the settings of a group."""
        config, own, has_letters = self._config(), self._group_settings(group_id), self._has_dead_letters()
        known = self._known.get(group_id)
        if known is not None and known[0] is config and known[1:3] == (own, has_letters):
            return known[3]
        terms = share_group_terms(config, own, has_dead_letters=has_letters)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[group_id] = config, dict(own), has_letters, terms
        return terms


def share_group_terms(
    config: BrokerConfig, own: Mapping[str, str], *, has_dead_letters: bool = True
) -> ShareGroupTerms:
    """Return the settings of a group that has these of its own.

    Without dead-letter topics letters that are on their way still have one: a downgrade loses none.
    """
    topic = own.get("errors.deadletterqueue.topic.name", "")
    limits = ShareLimits(
        max_record_locks=bounded(
            own.get("share.partition.max.record.locks"),
            config.group_share_partition_max_record_locks,
            config.group_share_min_partition_max_record_locks,
            config.group_share_max_partition_max_record_locks,
        ),
        delivery_count_limit=bounded(
            own.get("share.delivery.count.limit"),
            config.group_share_delivery_count_limit,
            config.group_share_min_delivery_count_limit,
            config.group_share_max_delivery_count_limit,
        ),
        record_lock_duration_ms=bounded(
            own.get("share.record.lock.duration.ms"),
            config.group_share_record_lock_duration_ms,
            config.group_share_min_record_lock_duration_ms,
            config.group_share_max_record_lock_duration_ms,
        ),
        renew_enabled=own.get("share.renew.acknowledge.enable", "true").lower() == "true",
        dead_letters=has_dead_letters and bool(topic),
    )
    reset = own.get("share.auto.offset.reset", LATEST).lower()
    if reset.startswith(BY_DURATION):
        reset = str(iso_duration_ms(reset.removeprefix(BY_DURATION)))
    elif reset not in (EARLIEST, LATEST):
        reset = LATEST
    committed_only = own.get("share.isolation.level", "read_uncommitted").lower() == "read_committed"
    copies = own.get("errors.deadletterqueue.copy.record.enable", "false").lower() == "true"
    return ShareGroupTerms(limits, reset, committed_only, topic, copies)
