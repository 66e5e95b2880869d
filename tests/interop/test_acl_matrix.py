"""The ACL matrix, asked of Apache Kafka and of Ottla: equal codes, equal names.

Kafka is 3.9 with its AclAuthorizer, and 4.4 with its StandardAuthorizer for what 3.9 does not have.

526 lines because what cannot be a row of the matrix is asked of the same brokers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.broker.api.routes import ROUTES
from ottla.broker.testing import BrokerThread
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionClosed
from ottla.client.security import SecurityConfig
from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType
from ottla.protocol.acls import ResourceType as Type
from ottla.protocol.api import ApiKey, response_class
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from peers.acl_matrix import EVERY_PROBE, Row, Seen, differences, rows, seen
from peers.acl_probes import Probe
from peers.acl_requests import (
    Facts,
    consumer_heartbeat,
    offset_commit,
    share_heartbeat,
    share_offsets,
    streams_heartbeat,
)
from peers.apache_kafka import ApacheKafka, Listener
from peers.kraft_kafka import KraftKafka
from peers.processes import free_port

pytestmark = pytest.mark.timeout(3600)

ADMIN: Final = "admin"
PASSWORD: Final = "secret"
AT_ONCE: Final = 4
CREATED: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
BOUND_S: Final = 1800
OPEN_MS: Final = 600_000
"""As long the transaction stays open that DescribeTransactions shows."""
WITHOUT_PROBE: Final = {
    ApiKey.CONTROLLED_SHUTDOWN,  # it would end the broker that is asked
    ApiKey.ALTER_CLIENT_QUOTAS,  # its answer has no code where it changes nothing
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,  # likewise
    ApiKey.CREATE_DELEGATION_TOKEN,  # tokens belong to owners, which need no permission for their own
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
LAST_OF_KAFKA_3: Final = {
    ApiKey.PRODUCE: 11, ApiKey.FETCH: 17, ApiKey.LIST_OFFSETS: 9, ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9, ApiKey.DESCRIBE_GROUPS: 5, ApiKey.DELETE_GROUPS: 2,
    ApiKey.INIT_PRODUCER_ID: 5, ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.LIST_TRANSACTIONS: 1,
    ApiKey.WRITE_TXN_MARKERS: 1, ApiKey.DESCRIBE_LOG_DIRS: 4, ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.UPDATE_FEATURES: 1, ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
}  # fmt: skip
"""Both brokers are asked in the newest versions of Apache Kafka 3.9, but for probes that name another one."""
HEARTBEATS: Final = {
    "consumer": consumer_heartbeat, "share": share_heartbeat, "streams": streams_heartbeat,
}  # fmt: skip
SHOWN_ONLY: Final = {(Operation.DESCRIBE, Type.CLUSTER)}
"""Asked for before the authorized operations on the cluster are listed."""
AUTHORIZED: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": f"User:{ADMIN};User:ANONYMOUS",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
OF_LONG_SESSIONS: Final = {
    f"group.{kind}.{limit}session.timeout.ms": str(OPEN_MS) for kind in HEARTBEATS for limit in ("", "max.")
} | {"group.streams.initial.rebalance.delay.ms": "0", "share.coordinator.state.topic.num.partitions": "4"}
"""Members of groups stay in them while the rows are asked, and none is shown that its tasks are delayed.

Both brokers list as many partitions of the share coordinator."""


def jaas(matrix: Iterable[Row]) -> str:
    """Return the JAAS line with a user for each row, and the administrator."""
    users = [ADMIN, *(row.user for row in matrix)]
    entries = " ".join(f'user_{user}="{PASSWORD}"' for user in users)
    login = f'username="{ADMIN}" password="{PASSWORD}"'  # of the broker itself
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {login} {entries};"


def connection(port: int, user: str) -> Connection:
    security = SecurityConfig(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username=user, sasl_password=PASSWORD
    )
    return Connection(Address("127.0.0.1", port), ClientConfig(security=security))


class Matrix:
    """The rows asked of one broker."""

    def __init__(self, port: int, matrix: list[Row]) -> None:
        self._port = port
        self._by_probe: dict[Probe, list[Row]] = defaultdict(list)
        for row in matrix:
            self._by_probe[row.probe].append(row)
        self._admin = connection(port, ADMIN)
        self._facts: dict[Probe, Facts] = {}
        self._seen: dict[Row, Seen] = {}

    async def ask(self) -> Mapping[Row, Seen]:
        """Prepare the resources and the rules, and send every row's request."""
        async with asyncio.timeout(BOUND_S):
            await self._admin.connect()
            try:
                await self._prepare()
                # The others list all topics: none may come or go meanwhile.
                for probe in filter(lambda probe: probe.is_deleted, self._by_probe):
                    await self._ask_probe(probe)
                await self._create_topics([probe for probe in self._by_probe if probe.is_deleted])
                slots = asyncio.Semaphore(AT_ONCE)
                async with asyncio.TaskGroup() as group:
                    for probe in self._by_probe:
                        if not probe.is_deleted:
                            group.create_task(self._ask_in(slots, probe))
            finally:
                await self._admin.close()
        return self._seen

    async def prepare(self, topics: Iterable[str], rules: Iterable[Acl]) -> None:
        """Make topics and rules, and no row's."""
        await self._admin.connect()
        try:
            await self._until_coordinated(0)
            creatable = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in topics]
            request = CreateTopicsRequest(topics=creatable, timeout_ms=60_000)
            made = await self._admin.send(request, CreateTopicsResponse)
            assert {topic.error_code for topic in made.topics} == {0}
            await self._create_rules(rules)
        finally:
            await self._admin.close()

    async def _prepare(self) -> None:
        for key_type in (0, 1):
            await self._until_coordinated(key_type)
        await self._create_topics([probe for probe in self._by_probe if probe.topic_exists])
        for probe in self._by_probe:
            self._facts.setdefault(probe, Facts(probe.name, broker_id=self._broker_id))
            if probe.group_kind:
                await self._join(probe)
            elif Type.GROUP in probe.types and probe.group_exists:
                await self._commit(self._facts[probe])
            if Type.TRANSACTIONAL_ID in probe.types:
                await self._begin_transaction(self._facts[probe], is_open=Type.TOPIC in probe.types)
        asked = [row for probe_rows in self._by_probe.values() for row in probe_rows]
        await self._create_rules(acl for row in asked for acl in row.rules)

    async def _until_coordinated(self, key_type: int) -> None:
        request = FindCoordinatorRequest(coordinator_keys=["any"], key_type=key_type)
        while True:
            answer = await self._admin.send(request, FindCoordinatorResponse, min_version=4, max_version=4)
            (found,) = answer.coordinators
            if not found.error_code:
                return
            await asyncio.sleep(0.1)

    async def _create_topics(self, probes: list[Probe]) -> None:
        topics = [CreatableTopic(name=probe.name, num_partitions=2, replication_factor=1) for probe in probes]
        while topics:
            request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
            answer = await self._admin.send(request, CreateTopicsResponse)
            # One that is deleted still may exist until its znode is gone.
            missing = {topic.name for topic in answer.topics if topic.error_code not in CREATED}
            topics = [topic for topic in topics if topic.name in missing]
        for probe in probes:
            await self._until_led(probe)

    async def _until_led(self, probe: Probe) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=probe.name)], allow_auto_topic_creation=False
        )
        while True:
            answer = await self._admin.send(request, MetadataResponse)
            (topic,) = answer.topics
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await self._create_topics([probe])
                return
            if not topic.error_code and not any(partition.error_code for partition in topic.partitions):
                self._broker_id = answer.brokers[0].node_id
                self._facts[probe] = Facts(probe.name, topic.topic_id, self._broker_id)
                return
            await asyncio.sleep(0.1)

    async def _commit(self, facts: Facts) -> None:
        await self._send(self._admin, offset_commit(facts), None)

    async def _join(self, probe: Probe) -> None:
        """Make a group of a newer kind, with a member that has the topic's partitions."""
        facts, heartbeat = self._facts[probe], HEARTBEATS[probe.group_kind]
        while True:  # a member that joins once more is shown what it has by then
            answer = await self._send(self._admin, heartbeat(facts, 0), None)
            if not answer.error_code and _has_partitions(answer):
                break
            await asyncio.sleep(0.1)
        while probe.group_kind == "share":
            offsets = await self._send(self._admin, share_offsets(facts, named=False), None)
            if offsets.groups[0].topics:
                break
            await asyncio.sleep(0.1)
        if probe.is_left:
            await self._send(self._admin, heartbeat(facts, -1), None)

    async def _begin_transaction(self, facts: Facts, *, is_open: bool) -> None:
        request = InitProducerIdRequest(transactional_id=facts.name, transaction_timeout_ms=OPEN_MS)
        while True:
            producer = await self._admin.send(request, InitProducerIdResponse)
            if not producer.error_code:
                break
            await asyncio.sleep(0.1)
        if is_open:
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=facts.name,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=facts.name, partitions=[0])],
            )
            await self._admin.send(add, AddPartitionsToTxnResponse, max_version=3)

    async def _create_rules(self, rules: Iterable[Acl]) -> None:
        by_pattern: dict[tuple[int, str, int], list[AclCreation]] = defaultdict(list)
        distinct = set(rules)
        for acl in distinct:
            kind, name, pattern, principal, host, operation, permission = acl
            creation = AclCreation(
                resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal=principal,
                host=host, operation=operation, permission_type=permission,
            )  # fmt: skip
            by_pattern[kind, name, pattern].append(creation)
        for creations in by_pattern.values():
            answer = await self._admin.send(CreateAclsRequest(creations=creations), CreateAclsResponse)
            assert {result.error_code for result in answer.results} == {0}, answer.results[0]
        while True:  # a broker of KRaft takes them over from the controller
            if await self._stored_rules() == len(distinct):
                return
            await asyncio.sleep(0.1)

    async def _stored_rules(self) -> int:
        anything = DescribeAclsRequest(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        answer = await self._admin.send(anything, DescribeAclsResponse)
        return sum(len(resource.acls) for resource in answer.resources)

    async def _ask_in(self, slots: asyncio.Semaphore, probe: Probe) -> None:
        async with slots:
            await self._ask_probe(probe)

    async def _ask_probe(self, probe: Probe) -> None:
        for row in self._by_probe[probe]:
            if probe.is_deleted:
                await self._create_topics([probe])
            sender = connection(self._port, row.user)
            await sender.connect()
            try:
                if probe.first is not None:
                    await self._send(sender, probe.first(self._facts[probe]), probe.version)
                response = await self._send(sender, probe.request(self._facts[probe]), probe.version)
            except ConnectionClosed:
                response = None
            finally:
                await sender.close()
            self._seen[row] = seen(row, response)

    async def _send(self, sender: Connection, request: Any, version: int | None) -> Any:
        newest = LAST_OF_KAFKA_3.get(request.API_KEY, request.MAX_VERSION) if version is None else version
        return await sender.send(
            request, response_class(request.API_KEY), min_version=version, max_version=newest
        )


@contextmanager
def apache(folder: Path, matrix: list[Row]) -> Iterator[int]:
    """Run Apache Kafka with its AclAuthorizer; yields the port where the rows log in."""
    login = Listener("SASL_PLAINTEXT", free_port())
    settings = {
        **AUTHORIZED,
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas(matrix),
    }
    with ApacheKafka(folder, settings, heap="512m", listeners={"LOGIN": login}):
        yield login.port


@contextmanager
def apache_4(folder: Path, matrix: list[Row]) -> Iterator[int]:
    """Run Apache Kafka 4.4 with its StandardAuthorizer; yields the port where the rows log in."""
    login = Listener("SASL_PLAINTEXT", free_port())
    settings = {
        **AUTHORIZED,
        **OF_LONG_SESSIONS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas(matrix),
    }
    with KraftKafka(folder, settings, heap="512m", listeners={"LOGIN": login}):
        yield login.port


@contextmanager
def ottla(folder: Path, matrix: list[Row]) -> Iterator[int]:
    """Run Ottla with the same rules; yields the port where the rows log in."""
    settings = {
        **AUTHORIZED,
        **OF_LONG_SESSIONS,
        "broker.id": "1",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas(matrix),
    }
    with BrokerThread(folder, settings) as broker:
        yield broker.port


def _has_partitions(answer: Any) -> bool:
    if hasattr(answer, "active_tasks"):
        return bool(answer.active_tasks)
    return answer.assignment is not None and bool(answer.assignment.topic_partitions)


def ask(port: int, matrix: list[Row]) -> Mapping[Row, Seen]:
    found = asyncio.run(Matrix(port, matrix).ask())
    assert len(found) == len(matrix)
    return found


def unlike_table(found: Mapping[Row, Seen]) -> list[str]:
    """Return the rows with another code, or other authorized operations, than the table has."""
    return [
        f"{row.title}: code {code} and operations {operations}, "
        f"by the table {row.expected_code} and {row.expected_operations}"
        for row, (code, operations, _) in found.items()
        if (code, operations) != (row.expected_code, row.expected_operations)
    ]


def test_the_table_has_each_api_that_asks_for_a_permission() -> None:
    asked = {request_of(probe).API_KEY for probe in EVERY_PROBE}
    served = {route.api_key for route in ROUTES if route.permissions}

    assert served - asked <= WITHOUT_PROBE


def test_the_table_needs_what_the_routes_name() -> None:
    """A probe has no permission that its route does not name, and together they have all of them."""
    by_api: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for probe in EVERY_PROBE:
        needed = {permission for wanted in probe.needs for permission in wanted.permissions}
        by_api[request_of(probe).API_KEY] |= needed
    for route in ROUTES:
        if route.api_key in by_api:
            named = {(permission.operation, permission.type) for permission in route.permissions}
            assert by_api[route.api_key] <= named, route.api_key
            shown = {
                kind
                for probe in EVERY_PROBE
                for kind in probe.shows
                if route.api_key == request_of(probe).API_KEY
            }
            assert named - by_api[route.api_key] <= shown | SHOWN_ONLY, route.api_key


def request_of(probe: Probe) -> Any:
    return probe.request(Facts(probe.name))


def test_ottla_answers_as_the_table_says(tmp_path: Path) -> None:
    matrix = list(rows())
    with ottla(tmp_path, matrix) as port:
        found = ask(port, matrix)

    assert unlike_table(found) == []


@pytest.mark.java
def test_apache_kafka_and_ottla_answer_alike(tmp_path: Path) -> None:
    matrix = [row for row in rows() if not row.is_of_kafka_4]
    with apache(tmp_path / "apache", matrix) as port:
        theirs = ask(port, matrix)
    with ottla(tmp_path / "ottla", matrix) as port:
        ours = ask(port, matrix)

    assert unlike_table(theirs) == []
    assert differences(theirs, ours) == []


@dataclass(frozen=True)
class Matched:
    """A user's group that subscribes to all topics of a prefix, of which it may describe some."""

    user: str
    described: tuple[str, ...]

    def rules(self) -> list[Acl]:
        group = (Type.GROUP, self.user, Operation.READ)
        needed = [group, *((Type.TOPIC, topic, Operation.DESCRIBE) for topic in self.described)]
        return [
            Acl(kind, name, PatternType.LITERAL, f"User:{self.user}", "*", operation, PermissionType.ALLOW)
            for kind, name, operation in needed
        ]


MATCHED: Final = ("matched-a", "matched-b")
OF_ONE_TOPIC: Final = Matched("u0", MATCHED[:1])
OF_BOTH_TOPICS: Final = Matched("u1", MATCHED)


async def assigned_by_expression(port: int, of: Matched) -> set[str]:
    """Join with an expression until partitions come, and return the names of their topics."""
    sender = connection(port, of.user)
    await sender.connect()
    try:
        request = ConsumerGroupHeartbeatRequest(
            group_id=of.user, member_id="the-member", rebalance_timeout_ms=60_000,
            subscribed_topic_regex="matched-.*", topic_partitions=[],
        )  # fmt: skip
        while True:
            answer = await sender.send(request, ConsumerGroupHeartbeatResponse)
            assert not answer.error_code, answer
            assigned = answer.assignment and answer.assignment.topic_partitions
            if assigned:
                break
            await asyncio.sleep(0.1)
        ids = [part.topic_id for part in assigned]
        topics = [MetadataRequestTopic(topic_id=id_, name=None) for id_ in ids]
        described = await sender.send(
            MetadataRequest(topics=topics), MetadataResponse, min_version=12, max_version=12
        )
        return {topic.name or "" for topic in described.topics}
    finally:
        await sender.close()


async def assigned_to_each(port: int) -> list[set[str]]:
    """Make topics and rules, and subscribe both users' groups to the expression."""
    async with asyncio.timeout(BOUND_S):
        matrix = Matrix(port, [])
        await matrix.prepare(MATCHED, [*OF_ONE_TOPIC.rules(), *OF_BOTH_TOPICS.rules()])
        return [await assigned_by_expression(port, of) for of in (OF_ONE_TOPIC, OF_BOTH_TOPICS)]


def test_an_expression_finds_the_topics_that_its_member_may_describe(tmp_path: Path) -> None:
    with ottla(tmp_path, list(rows())[:2]) as port:
        assert asyncio.run(assigned_to_each(port)) == [{MATCHED[0]}, set(MATCHED)]


@pytest.mark.java
def test_an_expression_finds_in_apache_kafka_4_what_it_finds_in_ottla(tmp_path: Path) -> None:
    with apache_4(tmp_path, list(rows())[:2]) as port:
        assert asyncio.run(assigned_to_each(port)) == [{MATCHED[0]}, set(MATCHED)]


def test_subscriptions_of_metrics_and_pushes_need_no_permission(tmp_path: Path) -> None:
    async def ask_without_rules(port: int) -> tuple[int, int]:
        sender = connection(port, "u0")
        await sender.connect()
        try:
            found = await sender.send(GetTelemetrySubscriptionsRequest(), GetTelemetrySubscriptionsResponse)
            push = PushTelemetryRequest(
                client_instance_id=found.client_instance_id, subscription_id=found.subscription_id
            )
            pushed = await sender.send(push, PushTelemetryResponse)
            return found.error_code, pushed.error_code
        finally:
            await sender.close()

    with ottla(tmp_path, list(rows())[:1]) as port:
        assert asyncio.run(ask_without_rules(port)) == (0, 0)


@pytest.mark.java
def test_apache_kafka_4_and_ottla_answer_alike_about_what_is_new(tmp_path: Path) -> None:
    matrix = [row for row in rows() if row.is_of_kafka_4 and row.probe.version != 0]  # as Kafka 4 has it
    with apache_4(tmp_path / "apache", matrix) as port:
        theirs = ask(port, matrix)
    with ottla(tmp_path / "ottla", matrix) as port:
        ours = ask(port, matrix)

    assert unlike_table(theirs) == []
    assert differences(theirs, ours) == []
