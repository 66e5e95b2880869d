"""Logins over real connections: messages in and out of order, credentials, lifetimes, and secrets."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential
from ottla.broker.security.sasl.testing import MECHANISMS, PASSWORD, SETTINGS, Wire, logs_in, upsertion_of
from ottla.broker.testing import BrokerThread
from ottla.client.authentication import Scram
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from ottla.protocol.schema import Message


@pytest.fixture
def broker(broker_with_logins: BrokerThread) -> BrokerThread:
    return broker_with_logins


# ---- the order of messages


def test_a_client_sees_what_it_may_do_before_it_logs_in(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.send(ApiVersionsRequest(), 0)
        assert len(wire.frame()) > 100

        assert wire.handshake("PLAIN").mechanisms == MECHANISMS
        assert wire.token(b"\0alice\0" + PASSWORD.encode()).error_code == 0
        assert wire.serves()


def test_tokens_without_a_header_follow_the_first_version_of_the_handshake(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        assert wire.handshake("SCRAM-SHA-256", version=0).error_code == 0
        client = Scram("SCRAM-SHA-256", "alice", PASSWORD, "nonce")
        wire.send_frame(client.first())
        proof = client.answer(wire.frame())
        assert proof is not None
        wire.send_frame(proof)
        assert client.answer(wire.frame()) is None

        assert wire.serves()


def test_a_short_token_without_a_header_is_taken(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.handshake("PLAIN", version=0)
        wire.send_frame(b"\0a\0b")  # shorter than any request

        assert wire.is_closed()


@pytest.mark.parametrize("version", [0, 1])
def test_an_unknown_mechanism_is_answered_and_the_connection_closed(
    broker: BrokerThread, version: int
) -> None:
    with Wire(broker.port) as wire:
        answer = wire.handshake("CRAM-MD5", version)

        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == MECHANISMS
        assert wire.is_closed()


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        ("PLAIN", b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"\0mallory\0wrong", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"junk", "due to invalid credentials with SASL mechanism PLAIN"),
        ("SCRAM-SHA-256", b"junk", "due to invalid credentials with SASL mechanism SCRAM-SHA-256"),
    ],
)
def test_a_refused_login_is_answered_late_and_the_connection_closed(
    broker: BrokerThread, mechanism: str, token: bytes, message: str
) -> None:
    with Wire(broker.port) as wire:
        wire.handshake(mechanism)
        wire.send(SaslAuthenticateRequest(auth_bytes=token), 2)
        wire.send(HeartbeatRequest(group_id="g", member_id="m"), 0)
        answer = SaslAuthenticateResponse.decode(wire.frame()[5:], 2)

        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert message in (answer.error_message or "")
        assert answer.auth_bytes == b""
        assert wire.is_closed()


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: (HeartbeatRequest(group_id="g", member_id="m"), 0),
        lambda: (SaslAuthenticateRequest(auth_bytes=b"\0alice\0" + PASSWORD.encode()), 2),
        lambda: (DescribeUserScramCredentialsRequest(), 0),
    ],
    ids=["heartbeat", "token", "users"],
)
def test_a_request_before_the_handshake_closes_the_connection(
    broker: BrokerThread, request_of: Callable[[], tuple[Message, int]]
) -> None:
    with Wire(broker.port) as wire:
        wire.send(*request_of())

        assert wire.is_closed()


def test_a_request_amid_a_login_closes_the_connection(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.handshake("SCRAM-SHA-256")
        wire.token(Scram("SCRAM-SHA-256", "alice", PASSWORD, "nonce").first())
        wire.send(HeartbeatRequest(group_id="g", member_id="m"), 0)

        assert wire.is_closed()


def test_a_second_handshake_amid_a_login_is_answered_and_closes_the_connection(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.handshake("PLAIN")

        assert wire.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed()


def test_a_login_that_has_no_end_cannot_be_repeated_and_goes_on(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        assert wire.log_in().session_lifetime_ms == 0

        assert wire.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.token(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.serves()


@pytest.mark.parametrize("size", [-1, 524_289, 1 << 30])
def test_a_large_frame_before_a_login_closes_the_connection(broker: BrokerThread, size: int) -> None:
    with Wire(broker.port) as wire:
        wire._socket.sendall(struct.pack(">i", size) + b"\0" * 10)

        assert wire.is_closed()


def test_a_large_frame_is_taken_behind_a_login(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.log_in()
        wire.send(HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000), 0)
        assert wire.frame()
        wire.send(SaslAuthenticateRequest(auth_bytes=b"x" * 600_000), 2)

        assert wire.frame()[4:]


# ---- credentials


def test_credentials_are_described_without_their_keys(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.log_in()
        every = wire.ask(DescribeUserScramCredentialsRequest(), DescribeUserScramCredentialsResponse, 0)
        users = [UserName(name=name) for name in ("alice", "nobody", "bob", "bob", "")]
        some = wire.ask(
            DescribeUserScramCredentialsRequest(users=users), DescribeUserScramCredentialsResponse, 0
        )

    assert [
        (result.user, [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in every.results
    ] == [("alice", [(1, 4096), (2, 4096)])]
    missing = "Attempt to describe a user credential that does not exist: "
    assert [(result.user, result.error_code, result.error_message) for result in some.results] == [
        ("alice", 0, None),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND, missing + "nobody"),
        (
            "bob",
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: bob",
        ),
        ("", ErrorCode.RESOURCE_NOT_FOUND, missing),
    ]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            {"upsertions": [upsertion_of("", "SCRAM-SHA-256", "p")]},
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Username must not be empty",
        ),
        (
            {"upsertions": [upsertion_of("x", "SCRAM-SHA-256", "p", 4095)]},
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Too few iterations",
        ),
        (
            {"upsertions": [upsertion_of("x", "SCRAM-SHA-256", "p", 1)]},
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Too few iterations",
        ),
        (
            {"upsertions": [upsertion_of("x", "SCRAM-SHA-256", "p", 16_385)]},
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Too many iterations",
        ),
        (
            {"upsertions": [upsertion_of("x", "SCRAM-SHA-256", "p", 2**31 - 1)]},
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Too many iterations",
        ),
        (
            {"upsertions": [ScramCredentialUpsertion(name="x", mechanism=3, iterations=4096)]},
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "Unknown SCRAM mechanism",
        ),
        (
            {"deletions": [ScramCredentialDeletion(name="x", mechanism=0)]},
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "Unknown SCRAM mechanism",
        ),
        (
            {"deletions": [ScramCredentialDeletion(name="x", mechanism=1)]},
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        (
            {"upsertions": [upsertion_of("x", "SCRAM-SHA-256", "p")] * 2},
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
    ],
)
def test_a_change_of_credentials_that_kafka_refuses_is_refused(
    broker: BrokerThread, change: Mapping[str, Any], code: ErrorCode, message: str
) -> None:
    with Wire(broker.port) as wire:
        wire.log_in()

        assert wire.alter(**change) == [(code, message)]


def test_changed_credentials_hold_for_the_next_login(broker: BrokerThread) -> None:
    user = "carol, /=\u2603"
    with Wire(broker.port) as wire:
        wire.log_in()
        wire.set_password(user, "first")
        assert logs_in(broker.port, user, "first")
        wire.set_password(user, "second")
        assert logs_in(broker.port, user, "second")
        assert not logs_in(broker.port, user, "first")
        assert wire.alter(deletions=[ScramCredentialDeletion(name=user, mechanism=2)]) == [(0, None)]
        assert not logs_in(broker.port, user, "second")
        assert logs_in(broker.port, user, "second", "SCRAM-SHA-256")


def test_the_znode_of_a_user_is_as_kafka_writes_it(broker: BrokerThread) -> None:
    with Wire(broker.port) as wire:
        wire.log_in()
        wire.set_password("dave", "d", 8192)
    assert broker.broker is not None
    data, _ = broker.call(broker.broker.services.zookeeper.get("/config/users/dave"))

    import json

    stored = json.loads(data)
    assert stored.keys() == {"version", "config"}
    for name, kind in SCRAM_HASHES.items():
        expected = ScramCredential.from_password(kind, "d", b"salt of dave", 8192)
        assert stored["config"][name] == expected.encode()


# ---- limits before a login


def test_the_oldest_connections_without_a_login_make_room_for_newer_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limited = SETTINGS | {"max.connections.before.login.per.ip": "3"}
    with BrokerThread(tmp_path, limited) as broker, Wire(broker.port) as member:
        member.log_in()
        waiting = [Wire(broker.port) for _ in range(4)]

        assert waiting[0].is_closed()
        waiting[0].__exit__()
        for wire in waiting[1:]:
            assert wire.log_in().error_code == 0
            wire.__exit__()
        assert member.serves()

    assert any(record.message == "connection closed before its login" for record in caplog.records)


# ---- lifetimes


def test_a_client_logs_in_again_or_its_connection_closes(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, SETTINGS | {"connections.max.reauth.ms": "3000"}) as broker:
        with Wire(broker.port) as again, Wire(broker.port) as never, Wire(broker.port) as old:
            assert never.log_in().session_lifetime_ms == 3000
            assert old.log_in(version=0).error_code == 0
            assert again.log_in().session_lifetime_ms == 3000
            assert again.log_in().session_lifetime_ms == 3000
            assert never.serves()

            assert becomes_closed(never)
            assert becomes_closed(old)
            assert again.log_in().error_code == 0
            assert again.serves()


def becomes_closed(wire: Wire) -> bool:
    try:
        while wire.serves():
            pass
    except (EOFError, ConnectionError):
        return True
    return False


def test_another_user_cannot_take_over_a_connection(tmp_path: Path) -> None:
    settings = SETTINGS | {"listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "60000"}
    with BrokerThread(tmp_path, settings) as broker, Wire(broker.port) as wire:
        assert wire.log_in().session_lifetime_ms == 60_000
        answer = wire.log_in(b"\0alice\0" + PASSWORD.encode())

        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals" in (answer.error_message or "")
        assert wire.is_closed()


# ---- secrets


def test_no_password_is_in_a_log_or_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with BrokerThread(tmp_path, SETTINGS) as broker:
        with Wire(broker.port) as wire:
            wire.log_in()
            wire.set_password("alice", PASSWORD)
            from ottla.protocol.messages.configs import (
                DescribeConfigsRequest,
                DescribeConfigsResource,
                DescribeConfigsResponse,
            )

            assert broker.broker is not None
            resource = DescribeConfigsResource(
                resource_type=4, resource_name=str(broker.broker.broker_id), configuration_keys=None
            )
            request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
            answer = wire.ask(request, DescribeConfigsResponse, 4)
        for token in (b"\0alice\0" + PASSWORD.encode() + b"x", b"\0alice\0\0" + PASSWORD.encode()):
            with Wire(broker.port) as wire:
                assert wire.log_in(token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        shown = repr(broker.broker.config)

    logged = "\n".join(str(vars(record)) for record in caplog.records)
    for secret in (PASSWORD, "admin-secret"):
        assert secret not in logged
        assert secret not in repr(answer)
        assert secret not in shown
