"""The audit log of an authorizer: denials at a limited rate, permissions for debugging."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.client.log_formats import in_one_line

if TYPE_CHECKING:
    from ottla.broker.security.authorizer import Decision

log = logging.getLogger("authorizer")

EVERY_MS: Final = 10_000
MOST_OF_CLIENT: Final = 10
"""Different denials of one principal and host that are logged per interval."""
MOST: Final = 200
"""Denials that are logged per interval."""
_LONGEST: Final = 255


class AuditLog:
    """Logs each denial once per interval.

    A client that asks for many resources does not hide the denials of others. Those left out are counted:
    `more_not_logged` of the next line.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a clock that never goes back."""
        self._now_ms = now_ms
        self._began_ms = float("-inf")
        self._logged: set[Decision] = set()
        self._of_client: Counter[tuple[str, str]] = Counter()
        self._left_out = 0

    def log(self, decision: Decision) -> None:
        """Log a decision, unless it is a denial that this interval has a line about, or lines enough."""
        if decision.is_allowed:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("operation allowed", extra=_facts(decision))
        elif self._takes(decision):
            facts = _facts(decision)
            if self._left_out:
                facts["more_not_logged"] = self._left_out
                self._left_out = 0
            log.info("operation denied", extra=facts)

    def _takes(self, denial: Decision) -> bool:
        now_ms = self._now_ms()
        if now_ms - self._began_ms >= EVERY_MS:
            self._began_ms = now_ms
            self._logged.clear()
            self._of_client.clear()
        client = str(denial.principal), denial.host
        is_full = len(self._logged) >= MOST or self._of_client[client] >= MOST_OF_CLIENT
        if denial in self._logged or is_full:
            self._left_out += 1
            return False
        self._logged.add(denial)
        self._of_client[client] += 1
        return True


def _facts(decision: Decision) -> dict[str, object]:
    return {
        "principal": _shown(str(decision.principal)),
        "host": decision.host,
        "operation": decision.operation.name,
        "resource": _shown(f"{decision.resource.type.name}:{decision.resource.name}"),
        "api": decision.api,
    }


def _shown(text: str) -> str:
    return in_one_line(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
