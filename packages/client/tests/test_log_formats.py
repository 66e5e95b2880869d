"""Log lines of clients: an event and its facts, as text and as JSON."""

from __future__ import annotations

import json
import logging

import pytest

from ottla.client.interceptors import Interceptors
from ottla.client.log_formats import FactsFormatter, JsonFormatter, facts_of


class Failing:
    def on_send(self, record: object) -> None:
        raise ValueError("no")


def test_a_line_of_a_client_is_an_event_and_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    interceptors = Interceptors([Failing()])
    for _ in range(2):
        interceptors.tell(interceptors.methods("on_send"), None)

    (line,) = caplog.records
    assert facts_of(line) == {"method": "Failing.on_send"}
    written = json.loads(JsonFormatter().format(line))
    assert written.pop("traceback").endswith("ValueError: no")
    assert written == {
        "time_ms": round(line.created * 1_000),
        "level": "error",
        "logger": "ottla.client.interceptors",
        "event": "an interceptor failed, later failures of it are not logged",
        "method": "Failing.on_send",
    }
    assert " ERROR   ottla.client.interceptors: an interceptor failed" in FactsFormatter().format(line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a client\n2026-01-01 INFO request: forged", r"a client\n2026-01-01 INFO request: forged"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\r", r"\r"),
        ("\u2028", r"\u2028"),
        ("\u202eecila", r"\u202eecila"),
        ("\udc80", r"\udc80"),
        ("ünï ☃", "ünï ☃"),
    ],
)
def test_a_fact_from_a_client_forges_no_line_and_steers_no_terminal(text: str, shown: str) -> None:
    record = logging.makeLogRecord({"msg": "login refused", "reason": text})

    assert FactsFormatter().format(record).endswith(f"login refused reason={shown}")
