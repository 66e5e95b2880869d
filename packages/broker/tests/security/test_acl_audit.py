"""The audit log: who was denied what, at a limited rate, in one line each."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from ottla.broker.security.acls.audit import EVERY_MS, MOST, MOST_OF_CLIENT, AuditLog
from ottla.broker.security.authorizer import Decision, Operation, Resource, ResourceType
from ottla.broker.security.principal import Principal


@dataclass
class Clock:
    now_ms: float = 0.0

    def __call__(self) -> float:
        return self.now_ms


def denial(topic: str = "t", client: str = "alice", *, is_allowed: bool = False) -> Decision:
    resource = Resource(ResourceType.TOPIC, topic)
    return Decision(Principal("User", client), "10.0.0.1", Operation.READ, resource, "FETCH", is_allowed)


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records]


def test_a_denial_names_principal_host_operation_resource_and_api(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "authorizer"):
        AuditLog(Clock()).log(denial())

    (line,) = facts(caplog)
    assert line["message"] == "operation denied"
    assert {name: line[name] for name in ("principal", "host", "operation", "resource", "api")} == {
        "principal": "User:alice",
        "host": "10.0.0.1",
        "operation": "READ",
        "resource": "TOPIC:t",
        "api": "FETCH",
    }


def test_a_permission_is_logged_for_debugging_only(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(Clock())
    with caplog.at_level(logging.INFO, "authorizer"):
        audit.log(denial(is_allowed=True))
    assert facts(caplog) == []

    with caplog.at_level(logging.DEBUG, "authorizer"):
        audit.log(denial(is_allowed=True))
    assert [line["message"] for line in facts(caplog)] == ["operation allowed"]


def test_a_denial_that_repeats_is_logged_once_per_interval_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    audit = AuditLog(clock)
    with caplog.at_level(logging.INFO, "authorizer"):
        for _ in range(5):
            audit.log(denial())
        clock.now_ms = EVERY_MS
        audit.log(denial())

    assert [line.get("more_not_logged") for line in facts(caplog)] == [None, 4]


def test_a_client_that_asks_for_everything_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(Clock())
    with caplog.at_level(logging.INFO, "authorizer"):
        for number in range(10_000):
            audit.log(denial(f"t{number}", "mallory"))
        audit.log(denial("t", "bob"))

    assert [line["principal"] for line in facts(caplog)] == [*["User:mallory"] * MOST_OF_CLIENT, "User:bob"]


def test_many_clients_are_logged_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(Clock())
    with caplog.at_level(logging.INFO, "authorizer"):
        for number in range(10_000):
            audit.log(denial("t", f"client-{number}"))

    assert len(facts(caplog)) == MOST


def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "authorizer"):
        AuditLog(Clock()).log(denial("t\n2026 INFO operation allowed " + "x" * 40_000, "al\x1bice\u2028"))

    (line,) = facts(caplog)
    assert line["principal"] == "User:al\\x1bice\\u2028"
    assert str(line["resource"]).isprintable()
    assert len(str(line["resource"])) < 300
