"""Alerts as records. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ottla.pipeline.jobs.alerting.alarms import News
from ottla.pipeline.jobs.alerting.rules import Rule

COLUMNS = "at_ms LONG, id STRING, state STRING, key STRING, value STRING"


def alert_record(
    pipeline: str, rule: Rule | None, news: News, metric: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return an alert as a row of COLUMNS; the same news has the same id, whenever it is said."""
    about = {"pipeline": pipeline, "rule": news.rule, "metric": metric, "labels": dict(labels)}
    said = {
        "state": news.state,
        "why": news.why,
        "value": news.value,
        "since": _iso(news.since_ms),
        "at": _iso(news.at_ms),
        "number": news.number,
        "severity": None if rule is None else rule.severity,
    }
    key = _text(about)
    unique = _text([about, news.state, news.since_ms, news.number])
    id_ = hashlib.sha256(unique.encode()).hexdigest()[:32]
    value = _text({"id": id_} | about | said)
    return {"at_ms": news.at_ms, "id": id_, "state": news.state, "key": key, "value": value}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
