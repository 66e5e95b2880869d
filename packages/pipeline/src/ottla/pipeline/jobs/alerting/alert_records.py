"""Alert events as records. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ottla.pipeline.jobs.alerting.alert_state import AlertEvent
from ottla.pipeline.jobs.alerting.rules import Rule

COLUMNS = "at_ms LONG, id STRING, state STRING, key STRING, value STRING"


def alert_record(
    pipeline: str, rule: Rule | None, event: AlertEvent, metric: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return an alert event as a row of COLUMNS; a repeated event has the same id."""
    about = {"pipeline": pipeline, "rule": event.rule, "metric": metric, "labels": dict(labels)}
    said = {
        "state": event.state,
        "why": event.why,
        "value": event.value,
        "since": _iso(event.since_ms),
        "at": _iso(event.at_ms),
        "number": event.number,
        "severity": None if rule is None else rule.severity,
    }
    key = _text(about)
    unique = _text([about, event.state, event.since_ms, event.number])
    id_ = hashlib.sha256(unique.encode()).hexdigest()[:32]
    value = _text({"id": id_} | about | said)
    return {"at_ms": event.at_ms, "id": id_, "state": event.state, "key": key, "value": value}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
