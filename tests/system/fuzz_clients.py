"""Hostile connections, the canary beside them, and looks at their broker: the parts of `fuzz.py`."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from random_frames import RandomFrames
from secured_broker import PASSWORDS, SecuredBroker

from ottla.broker.security.sasl.testing import Wire
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from ottla.protocol.messages.scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
)

CANARY = "canary"
FRAMES_PER_CONNECTION = 40
ALL_RULES = DeleteAclsRequest(
    filters=[DeleteAclsFilter(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)]
)
_OF_CLIENTS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_TROUBLE = re.compile(r"Traceback|Unhandled|never retrieved|never awaited|Exception in callback")


class Attack:
    """Connections that frames are sent to; a closed one is opened again.

    Each begins with a TLS handshake where there is a context for it, and with the frames of a login.
    """

    def __init__(
        self, port: int, width: int = 8, *, tls: ssl.SSLContext | None = None, login: Sequence[bytes] = ()
    ) -> None:
        self._port = port
        self._tls = tls
        self._login = login
        self._session: ssl.SSLSession | None = None
        self._sockets: list[socket.socket | None] = [None] * width
        self._sent = [0] * width
        self.reconnects = 0

    def throw(self, number: int, *frames: bytes) -> None:
        """Send frames without waiting for their answers; read other answers that have arrived."""
        lane = number % len(self._sockets)
        try:
            link = self._sockets[lane] or self._open(lane)
            for frame in frames:
                self._send(link, frame)
                self._drain(link)
        except OSError:
            self._close(lane)
        else:
            self._sent[lane] += len(frames)
            if self._sent[lane] >= FRAMES_PER_CONNECTION:
                self._close(lane)

    def throw_raw(self, data: bytes) -> None:
        """Send bytes on a connection of their own, in place of a handshake, and close it."""
        self.reconnects += 1
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 20) as link:
            link.sendall(data)

    def _send(self, link: socket.socket, frame: bytes) -> None:
        while frame:
            if not select.select([], [link], [], 2)[1]:
                raise TimeoutError
            try:
                frame = frame[link.send(frame) :]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._drain(link)

    def _drain(self, link: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while link.recv(65536):
                pass
            raise ConnectionResetError  # an empty read: the broker has closed

    def _open(self, lane: int) -> socket.socket:
        self.reconnects += 1
        self._sent[lane] = 0
        link = socket.create_connection(("127.0.0.1", self._port), timeout=20)
        self._sockets[lane] = link
        if self._tls is not None:
            link = self._tls.wrap_socket(link, server_hostname="127.0.0.1", session=self._session)
            self._sockets[lane] = link
        link.setblocking(False)
        for frame in self._login:
            self._send(link, frame)
        return link

    def _close(self, lane: int) -> None:
        link = self._sockets[lane]
        if isinstance(link, ssl.SSLSocket) and link.session is not None and link.session.has_ticket:
            self._session = link.session
        if link is not None:
            link.close()
        self._sockets[lane] = None
        self._sent[lane] = 0

    def close(self) -> None:
        for lane in range(len(self._sockets)):
            self._close(lane)


class Canary:
    """An ordinary client whose records must all exist at the end."""

    def __init__(self, servers: str, login: Mapping[str, str] | None = None) -> None:
        self._settings = {"bootstrap.servers": servers, "log_level": 0, **(login or {})}
        self._producer = Producer({"enable.idempotence": True, **self._settings})
        self.sung = 0

    def sing(self) -> None:
        """Produce a record. Raises AssertionError unless it is acknowledged."""
        self._producer.produce(CANARY, b"%d" % self.sung, partition=0)
        if self._producer.flush(20):
            raise AssertionError("the canary's record was not acknowledged within 20 s")
        self.sung += 1

    def found(self) -> list[int]:
        consumer = Consumer({"group.id": "canary", **self._settings})
        consumer.assign([TopicPartition(CANARY, 0, OFFSET_BEGINNING)])
        messages = consumer.consume(self.sung, timeout=20)
        consumer.close()
        return [int(message.value()) for message in messages]


def served_apis(port: int) -> list[ApiKey]:
    """Return the APIs that the broker serves."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        frames = RandomFrames(0, [ApiKey.API_VERSIONS])
        body = frames.header(ApiKey.API_VERSIONS, 0, ApiVersionsRequest)
        link.sendall(len(body).to_bytes(4) + body)
        answer = link.makefile("rb")
        data = answer.read(int.from_bytes(answer.read(4)))
    return [ApiKey(one.api_key) for one in ApiVersionsResponse.decode(data[4:], 0).api_keys]


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the broker is gone")


def clean_up(servers: str) -> None:
    """Delete every topic but the canary's, and every group."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topics = [
        name for name in admin.list_topics(timeout=30).topics if name != CANARY and not name.startswith("__")
    ]
    for future in (admin.delete_topics(topics) if topics else {}).values():
        with contextlib.suppress(KafkaException):
            future.result(30)
    time.sleep(2.5)
    for _ in range(5):
        groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
        for future in (
            admin.delete_consumer_groups([g for g in groups if g]) if any(groups) else {}
        ).values():
            with contextlib.suppress(KafkaException):
                future.result(30)
        time.sleep(1)


def clean_up_security(broker: SecuredBroker) -> list[str]:
    """Delete all rules, quotas and users of SCRAM that the fuzz made; return what there was."""
    with Wire(broker.port) as wire:
        rules = wire.ask(ALL_RULES, DeleteAclsResponse, 1).filter_results[0].matching_acls
        found = [f"there are {len(rules)} rules"] if rules else []
        quotas = wire.ask(DescribeClientQuotasRequest(components=[]), DescribeClientQuotasResponse, 0)
        strange = [entry for entry in quotas.entries or [] if not _is_canarys(entry)]
        found += [f"there are quotas {strange[:3]}"] if strange else []
        wire.ask(_removal(strange), AlterClientQuotasResponse, 0)
        described = wire.ask(DescribeUserScramCredentialsRequest(), DescribeUserScramCredentialsResponse, 0)
        users = [user for user in described.results if user.user not in PASSWORDS]
        found += [f"there are users {[user.user for user in users]}"] if users else []
        gone = [
            ScramCredentialDeletion(name=user.user, mechanism=credential.mechanism)
            for user in users
            for credential in user.credential_infos
        ]
        wire.alter(deletions=gone)
    return found


def canary_quotas(broker: SecuredBroker) -> None:
    """Give the canary and this machine quotas of their own, which go before any that the fuzz sets."""
    canary = [EntityData(entity_type=kind, entity_name=CANARY) for kind in ("user", "client-id")]
    here = [EntityData(entity_type="ip", entity_name="127.0.0.1")]
    entries = [
        AlteredEntryData(entity=canary, ops=[_op(key, 1e12) for key in _OF_CLIENTS]),
        AlteredEntryData(entity=here, ops=[_op("connection_creation_rate", 1e6)]),
    ]
    with Wire(broker.port) as wire:
        answer = wire.ask(AlterClientQuotasRequest(entries=entries), AlterClientQuotasResponse, 0)
        assert [entry.error_code for entry in answer.entries] == [0, 0], answer


def _op(key: str, value: float) -> OpData:
    return OpData(key=key, value=value)


def _is_canarys(entry: EntryData) -> bool:
    return any(part.entity_name in (CANARY, "127.0.0.1") for part in entry.entity)


def _removal(entries: Sequence[EntryData]) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        entries=[
            AlteredEntryData(
                entity=entry.entity, ops=[OpData(key=value.key, remove=True) for value in entry.values]
            )
            for entry in entries
        ]
    )


def troubles(log: str) -> list[str]:
    """Return lines of the broker's log that must not occur, each with its context."""
    lines = log.splitlines()
    return [
        "in the broker's log:\n    " + "\n    ".join(lines[max(0, number - 1) : number + 20])
        for number, line in enumerate(lines)
        if _TROUBLE.search(line)
    ]
