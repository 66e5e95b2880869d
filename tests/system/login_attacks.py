"""Attacks by logins, and by what ZooKeeper, settings and files hold: forged tokens, damaged znodes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import math
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from secured_broker import (
    ADMIN,
    AUDIENCE,
    KEY_ID,
    MECHANISMS,
    PASSWORDS,
    SecuredBroker,
    assert_closed,
    assert_ends,
    assert_without_rights,
    bearer,
    log_in,
    opened,
    plain,
    secured_attack,
    unsigned,
)

from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential
from ottla.broker.security.sasl.testing import Wire, logs_in, upsertion_of
from ottla.broker.security.tls.testing import (
    Authority,
)
from ottla.broker.testing import BrokerFailed, BrokerProcess, free_port
from ottla.client.authentication import Scram
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    EntityData,
    OpData,
)
from ottla.zookeeper import paths
from ottla.zookeeper.embedded.access import access_to
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import NodeExists, Session

BOUND_S = 60.0


# --- logins


@secured_attack("messages of logins out of order")
def out_of_order(broker: SecuredBroker) -> None:
    proof = SCRAM_HASHES["SCRAM-SHA-512"]
    for listener in ("SASL_SSL", "SASL_PLAINTEXT"):
        for _ in range(20):
            with broker.wire(listener) as wire:  # a token before the handshake
                assert_ends(wire, lambda wire: wire.token(plain(ADMIN, PASSWORDS[ADMIN])).error_code)
            with broker.wire(listener) as wire:  # a second handshake
                wire.handshake("PLAIN")
                assert_ends(wire, lambda wire: wire.handshake("PLAIN").error_code)
            with broker.wire(listener) as wire:  # a request amid the login
                wire.handshake("PLAIN")
                assert_ends(wire, lambda wire: not wire.serves())
            with broker.wire(listener) as wire:  # the last message of SCRAM first
                wire.handshake(proof.name)
                assert_ends(wire, lambda wire: wire.token(b"c=biws,r=x,p=" + b"A" * 88).error_code)
            with broker.wire(listener) as wire:  # the first message of SCRAM twice
                wire.handshake(proof.name)
                first = Scram(proof.name, ADMIN, PASSWORDS[ADMIN], "nonce").first()
                wire.token(first)
                assert_ends(wire, lambda wire, first=first: wire.token(first).error_code)  # type: ignore[misc]
            with broker.wire(listener) as wire:  # again behind a login without an end
                log_in(wire, "alice")
                assert wire.token(plain(ADMIN, PASSWORDS[ADMIN])).error_code == ErrorCode.ILLEGAL_SASL_STATE
                assert_without_rights(wire)


@secured_attack("tokens of 512 KiB and more")
def large_tokens(broker: SecuredBroker) -> None:
    for mechanism in MECHANISMS:
        for size in (524_200, 524_288, 524_289, 1_000_000, 50_000_000):
            for version in (0, 1):
                with broker.wire("SASL_PLAINTEXT") as wire:
                    assert wire.handshake(mechanism, version).error_code == 0
                    assert_refused_bytes(wire, size, with_header=version == 1)
    sizes = (struct.pack(">i", size) for size in (-1, -(2**31), 2**31 - 1, 524_289, 0))
    for head in sizes:
        with opened(broker, "SASL_PLAINTEXT") as plug:
            plug.sendall(head)
            assert_closed(plug)


def assert_refused_bytes(wire: Wire, size: int, *, with_header: bool) -> None:
    """Send a token of zeros in pieces as they are taken: it is refused, or the connection closes."""
    head = b"\0\x24\0\1\0\0\0\1\xff\xff" + struct.pack(">i", size) if with_header else b""
    try:
        wire._socket.sendall(struct.pack(">i", len(head) + size) + head)
        for _ in range(0, size, 65_536):
            wire._socket.sendall(bytes(min(65_536, size)))
        if with_header:
            answer = wire.frame()
            assert int.from_bytes(answer[4:6]) == ErrorCode.SASL_AUTHENTICATION_FAILED
    except (OSError, EOFError):
        return
    assert wire.is_closed()


@secured_attack("foreign nonces, bindings and iteration counts of SCRAM")
def foreign_nonces(broker: SecuredBroker) -> None:
    name = "SCRAM-SHA-256"
    for change in (
        lambda proof: proof.replace(b"r=", b"r=x"),
        lambda proof: proof.replace(b"c=biws", b"c=eSws"),
        lambda proof: proof[:-4] + b"AAA=",
        lambda proof: proof.partition(b",p=")[0],
        lambda proof: b"n,,n=admin,r=other",
    ):
        for _ in range(20):
            with broker.wire("SASL_SSL") as wire:
                client = Scram(name, ADMIN, PASSWORDS[ADMIN], "nonce")
                wire.handshake(name)
                proof = client.answer(wire.token(client.first()).auth_bytes)
                assert proof is not None
                answer = wire.token(change(proof))
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, answer
                assert wire.is_closed()
    with broker.wire("SASL_SSL") as wire:
        log_in(wire)
        for count in (-(2**31), -1, 0, 1, 4_095, 16_385, 2**31 - 1):
            [(code, _)] = wire.alter(upsertions=[upsertion_of("mallory", name, "x", count)])
            assert code == ErrorCode.UNACCEPTABLE_CREDENTIAL, (count, code)


@secured_attack("credentials in ZooKeeper of 1 and of 2^31 iterations, and damaged ones")
def damaged_credentials(broker: SecuredBroker) -> None:
    kind = SCRAM_HASHES["SCRAM-SHA-256"]
    fine = ScramCredential.from_password(kind, "password", b"salt").encode()
    damaged = {
        "one": ScramCredential.from_password(kind, "password", b"salt", 1).encode(),
        "many": fine.replace("iterations=4096", f"iterations={2**31}"),
        "huge": fine.replace("iterations=4096", "iterations=" + "9" * 6_000),
        "none": fine.replace("iterations=4096", "iterations="),
        "cut": fine[: len(fine) // 2],
        "empty": "",
    }

    async def write(session: Session) -> None:
        for user, credential in damaged.items():
            data = json.dumps({"version": 1, "config": {kind.name: credential}}).encode()
            await session.create(f"{paths.CONFIG}/users/{user}", data)
            await notify(session, f"users/{user}")
        for user, data in (
            ("bytes", b"\xff\xfe"),
            ("list", b"[1]"),
            ("deep", b'{"version":1,"config":' * 9_000),
        ):
            await session.create(f"{paths.CONFIG}/users/{user}", data)
            await notify(session, f"users/{user}")

    in_zookeeper(broker, write)
    time.sleep(2)
    for user in (*damaged, "bytes", "list", "deep"):
        with contextlib.suppress(Exception):
            assert not logs_in(broker.ports["SASL_PLAINTEXT"], user, "password", kind.name), user


@secured_attack("tokens without a signature, of other keys, of other times")
def forged_tokens(broker: SecuredBroker) -> None:
    now_s = int(time.time())
    fine = {"sub": ADMIN, "aud": AUDIENCE, "iat": now_s, "exp": now_s + 600}
    public = broker.token_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    other = ec.generate_private_key(ec.SECP256R1())
    forged = {
        "alg none": unsigned(fine),
        "alg None": unsigned(fine, "None"),
        "no alg": unsigned(fine, ""),
        "swapped key": broker.token(other, sub=ADMIN),
        "public key as a secret": _hmac_token(fine, public),
        "signature cut": broker.token(sub=ADMIN)[:-4],
        "payload of another": _with_payload_of(broker.token(sub=ADMIN), broker.token()),
        "huge claims": broker.token(sub=ADMIN, more="x" * 200_000),
        "deep claims": "e30." + "W1tb" * 10_000 + ".x",
        "long name": broker.token(sub="x" * 60_000),
        "future iat": broker.token(sub=ADMIN, iat=now_s + 3_600),
        "future nbf": broker.token(sub=ADMIN, nbf=now_s + 3_600),
        "iat of a list": broker.token(sub=ADMIN, iat=[now_s]),
        "over": broker.token(sub=ADMIN, exp=now_s - 3_600, iat=now_s - 7_200),
        "endless": broker.token(sub=ADMIN, exp=10**30),
        "infinite": _raw_token(broker, b'{"sub":"admin","aud":"kafka","iat":0,"exp":Infinity}'),
        "not a number": _raw_token(broker, b'{"sub":"admin","aud":"kafka","iat":0,"exp":NaN}'),
        "another audience": broker.token(sub=ADMIN, aud="other"),
        "no subject": broker.token(sub=""),
        "critical": jwt.encode(fine, broker.token_key, "ES256", {"kid": KEY_ID, "crit": ["x"], "x": 1}),
        "key from outside": jwt.encode(
            fine, other, "ES256", {"kid": "../../x", "jku": "http://127.0.0.1:1/keys", "x5u": "file:///etc"}
        ),
    }
    for listener in ("SASL_SSL", "SASL_PLAINTEXT"):
        for name, token in forged.items():
            with broker.wire(listener) as wire:
                assert wire.handshake("OAUTHBEARER").error_code == 0
                answer = wire.token(bearer(token))
                if answer.error_code == 0:  # the error comes as a message, and the client acknowledges it
                    assert b"status" in answer.auth_bytes, f"{name} gets in"
                    answer = wire.token(b"\x01")
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, name
                assert wire.is_closed()
        with broker.wire(listener) as wire:
            wire.handshake("OAUTHBEARER")
            assert wire.token(bearer(broker.token())).auth_bytes == b""
            assert_without_rights(wire)


def _hmac_token(payload: dict[str, Any], secret: bytes) -> str:
    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "kid": KEY_ID}).encode())
    text = head + b"." + part(json.dumps(payload).encode())
    return (text + b"." + part(hmac.new(secret, text, hashlib.sha256).digest())).decode()


def _raw_token(broker: SecuredBroker, payload: bytes) -> str:
    return str(jwt.PyJWS().encode(payload, broker.token_key, "ES256", {"kid": KEY_ID}))


def _with_payload_of(first: str, second: str) -> str:
    head, payload, _ = first.split(".")
    return f"{head}.{payload}.{second.split('.')[2]}"


@secured_attack("principals with every odd character")
def odd_principals(broker: SecuredBroker) -> None:
    odd = [
        "*", "User:*", f"User:{ADMIN}", f"{ADMIN} ", f"{ADMIN}\n", f"{ADMIN};User:x", f"{ADMIN}\0",
        "\u202e" + ADMIN, ADMIN.upper(), "a,b", "a=b", "a;b", "a:b", "a/b", "../../config/users/admin",
        "ANONYMOUS ", "%2e%2e", "ü" * 100, "\U0001f511", "'; --", "\x01\x02", "x" * 255,
        "alice\r\nforged", "Group:x", "\ufeffadmin",
    ]  # fmt: skip
    with broker.wire("SASL_SSL") as wire:
        log_in(wire)
        for name in odd:
            creation = AclCreation(
                resource_type=2, resource_name="t", resource_pattern_type=3,
                principal=f"User:{name}", host="*", operation=3, permission_type=3,
            )  # fmt: skip
            answer = wire.ask(CreateAclsRequest(creations=[creation]), CreateAclsResponse, 1)
            assert answer.results[0].error_code in (0, ErrorCode.INVALID_REQUEST), name
    for name in odd:
        with broker.wire("SASL_SSL") as wire:
            wire.handshake("OAUTHBEARER")
            answer = wire.token(bearer(broker.token(sub=name)))
            if answer.error_code == 0 and not answer.auth_bytes:
                assert_without_rights(wire)
        with broker.wire("SASL_SSL") as wire:
            wire.handshake("PLAIN")
            assert wire.token(plain(name, PASSWORDS[ADMIN])).error_code != 0, name
    assert "\nforged" not in broker.log_file.read_text(errors="replace")


# --- ZooKeeper


@secured_attack("znodes of rules of another version, and damaged ones")
def damaged_rules(broker: SecuredBroker) -> None:
    allowing = {"principal": "User:*", "permissionType": "Allow", "operation": "All", "host": "*"}
    contents = [
        b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"version":1}', b'{"version":1,"acls":null}',
        json.dumps({"version": 99, "acls": [allowing]}).encode(),
        json.dumps({"version": "1", "acls": [allowing]}).encode(),
        json.dumps({"version": 1, "acls": [allowing | {"operation": "Everything"}]}).encode(),
        json.dumps({"version": 1, "acls": [allowing | {"permissionType": "Maybe"}]}).encode(),
        json.dumps({"version": 1, "acls": [allowing | {"principal": "*"}]}).encode(),
        json.dumps({"version": 1, "acls": [{"principal": "User:*"}]}).encode(),
        b'{"version":1,"acls":' + b"[" * 100_000,
    ]  # fmt: skip
    places = ["/kafka-acl/Topic", "/kafka-acl/Cluster", "/kafka-acl-extended/prefixed/Topic"]

    async def write(session: Session) -> None:
        for place in places:
            await made(session, place)
            for number, data in enumerate(contents):
                name = "kafka-cluster" if place.endswith("Cluster") else f"t{number}"
                await made(session, f"{place}/{name}", data)
                await changed_rule(session, place.rpartition("/")[2], name)
        for number, data in enumerate((b"", b"no:form:at", b"\xff", b"{}", b"Topic", b"Nothing:x")):
            await made(session, f"/kafka-acl-changes/acl_changes_{9_000 + number:010d}", data)
            await made(session, f"/kafka-acl-extended-changes/acl_changes_{9_000 + number:010d}", data)

    in_zookeeper(broker, write)
    time.sleep(2)
    for _ in range(5):
        with broker.wire("SASL_SSL") as wire:
            log_in(wire, "alice")
            assert_without_rights(wire)


async def made(session: Session, path: str, data: bytes = b"") -> None:
    """Create a znode, or change it."""
    try:
        await session.create(path, data, make_parents=True)
    except NodeExists:
        await session.set(path, data)


async def changed_rule(session: Session, kind: str, name: str) -> None:
    await session.create(
        "/kafka-acl-changes/acl_changes_", f"{kind}:{name}".encode(), sequential=True, make_parents=True
    )


async def notify(session: Session, entity: str) -> None:
    data = json.dumps({"version": 2, "entity_path": entity}).encode()
    await session.create(f"{paths.CONFIG}/changes/config_change_", data, sequential=True, make_parents=True)


def in_zookeeper(broker: SecuredBroker, write: Callable[[Session], Awaitable[None]]) -> None:
    """Write into the coordinator of a broker, with its secret."""

    async def run() -> None:
        access = access_to(broker.data_dir)
        async with KazooSession(access.connect_string, credentials=access.credentials) as session:
            await write(session)

    asyncio.run(run())


@secured_attack("quotas of 0, of NaN and of infinity")
def odd_quotas(broker: SecuredBroker) -> None:
    values = (0.0, -0.0, math.nan, math.inf, -math.inf, -1.0, 5e-324, 1e308)
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "connection_creation_rate", "x")
    with broker.wire("SASL_SSL") as wire:
        log_in(wire)
        for value in values:
            for key in keys:
                kind = "ip" if key.startswith("connection") else "user"
                entity = [EntityData(entity_type=kind, entity_name="10.6.6.6" if kind == "ip" else "mallory")]
                entry = AlteredEntryData(entity=entity, ops=[OpData(key=key, value=value)])
                answer = wire.ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse, 0)
                code = answer.entries[0].error_code
                least = 0 if kind == "ip" else 5e-324  # an address may be shut out, as in Kafka
                assert (code == 0) <= (least <= value < math.inf), (key, value, code)

    async def write(session: Session) -> None:
        texts: list[Any] = ["NaN", "-1", "0", "", "Infinity", "1e999", "x" * 100_000, None, 7, []]
        for number, text in enumerate(texts):
            data = json.dumps(
                {"version": 1, "config": {"producer_byte_rate": text, "request_percentage": text}}
            )
            for entity in (f"users/odd{number}", f"clients/odd{number}"):
                await made(session, f"{paths.CONFIG}/{entity}", data.encode())
                await notify(session, entity)

    in_zookeeper(broker, write)
    time.sleep(2)


# --- settings and files


@secured_attack("a certificate that is exchanged for broken ones")
def broken_certificates(broker: SecuredBroker) -> None:
    fine = broker.keystore.read_text()
    foreign = Authority().sign("broker")
    late = broker.authority.sign("broker")
    broken = [
        "", fine[: len(fine) // 2], fine.replace("A", "B"), foreign.chain_pem,
        foreign.chain_pem + late.key_pem(), late.chain_pem, "\0" * 1_000,
        "-----BEGIN CERTIFICATE-----\n" * 1_000,
    ]  # fmt: skip
    before = certificate_of(broker)
    for text in broken:
        broker.keystore.write_text(text)
        time.sleep(1.2)  # it looks at its files every half second
        assert certificate_of(broker) == before
    broker.keystore.unlink()
    time.sleep(1.2)
    assert certificate_of(broker) == before
    broker.keystore.write_text(late.pem)
    ends_s = time.monotonic() + BOUND_S
    while certificate_of(broker) == before:
        assert time.monotonic() < ends_s, "the new certificate is not taken"
        time.sleep(0.1)


def certificate_of(broker: SecuredBroker) -> bytes:
    with (
        opened(broker, "SASL_SSL") as plug,
        broker.trusting().wrap_socket(plug, server_hostname="127.0.0.1") as link,
    ):
        return link.getpeercert(binary_form=True) or b""


@secured_attack("JAAS lines cut short, and listeners that share a port")
def refused_starts(broker: SecuredBroker) -> None:
    line = f'{LOGIN_MODULES["PLAIN"]} required username="admin" password="hush" user_admin="hush";'
    port = free_port("127.0.0.1")
    base = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
    }
    base |= {"sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    cuts = [line[:size] for size in (0, 10, len(line) // 2, line.index("required") + 8, len(line) - 1)]
    two = f"PLAINTEXT://127.0.0.1:{port},OTHER://127.0.0.1:{port}"
    protocols = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"}
    settings = [*({**base, key: cut} for cut in cuts), {"listeners": two, **protocols}]
    for number, wrong in enumerate(settings):
        other = BrokerProcess(broker.data_dir / f"other-{number}", wrong)
        try:
            other.start()
        except BrokerFailed:
            text = other.log_file.read_text()
            assert text.count("\n") == 1, f"more than one line: {text[:500]}"
            assert "hush" not in text, "the line shows the password"
        else:
            other.kill()
            raise AssertionError(f"a broker starts with {wrong}")
