"""Records of a share group that its members hold, from the metrics of the brokers that lead its partitions.

No API of Kafka has this number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from ottla.protocol.topics import TopicPartition

_ACQUIRED: Final = re.compile(
    r"^ottla_broker_sharepartitionmetrics_acquiredmessagecount\{(?P<labels>.*)\} (?P<value>\S+)$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


def acquired_records(page: str, group: str) -> dict[TopicPartition, int]:
    """Return how many records members of a group hold, by partition, from a page in Prometheus' format."""
    return acquired_by_group(page).get(group, {})


def acquired_by_group(page: str) -> dict[str, dict[TopicPartition, int]]:
    """Return how many records members of each group hold, by partition.

    Raises ValueError for a page with the meter, and with labels or values that no broker writes.
    """
    found: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for line in _ACQUIRED.finditer(page):
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(line["labels"])}
        try:
            where = TopicPartition(labels["topic"], int(labels["partition"]))
            found[labels["group"]][where] = int(float(line["value"]))
        except (KeyError, ValueError, OverflowError):
            raise ValueError("the count of acquired records is not as a broker writes it") from None
    return dict(found)


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value)
