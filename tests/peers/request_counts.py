"""The requests of each API and version that clients have sent, as an Ottla broker counts them."""

from __future__ import annotations

import re
import urllib.request
from typing import Final

_COUNT: Final = re.compile(
    r'^kafka_network_requestmetrics_requests_total\{request="(\w+)",version="(\d+)"\} (\S+)$', re.MULTILINE
)


def used_versions(metrics_address: str) -> set[tuple[str, int]]:
    """The APIs and versions that were asked for since the broker was started, by its metrics on HOST:PORT."""
    return set(request_counts(metrics_address))


def request_counts(metrics_address: str) -> dict[tuple[str, int], int]:
    """How often each API and version was asked for since the broker was started."""
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (name, int(version)): int(float(count))
        for name, version, count in _COUNT.findall(text)
        if float(count) > 0
    }
