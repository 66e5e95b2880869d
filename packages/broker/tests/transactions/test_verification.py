"""Verifications of transactions that go to the coordinator of another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from ottla.broker.api.testing import BROKER_ID, DataPlane
from ottla.broker.metrics import Histogram, Meter, Metrics
from ottla.broker.peers import IncompatibleBroker
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.transactions.events import Producer
from ottla.broker.transactions.verification import Verification, VerificationRequests
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
P = Producer(7, 0)


class Coordinator:
    """Answers with `code`, once `gate` is open; `requests` has what came."""

    def __init__(self, code: int = 0, failure: Exception | None = None) -> None:
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.code = code
        self.failure = failure

    async def ask(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        self.arrived.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=number, partition_error_code=self.code
                                )
                                for number in topic.partitions
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in request.transactions
            ]
        )


def background() -> BackgroundTasks:
    return BackgroundTasks(Metrics(), Environment().clock)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE])
async def test_every_partition_gets_the_coordinators_answer(code: ErrorCode) -> None:
    coordinator = Coordinator(code)
    async with background() as tasks:
        requests = VerificationRequests(coordinator.ask, tasks)

        errors = await requests.verify(1, "x", P, [A, B])

    assert errors == {A: code, B: code}
    (asked,) = coordinator.requests[0].transactions
    assert (asked.transactional_id, asked.producer_id, asked.verify_only) == ("x", 7, True)


async def test_what_waits_for_a_broker_shares_its_next_request() -> None:
    coordinator = Coordinator()
    coordinator.gate.clear()
    async with background() as tasks, asyncio.TaskGroup() as group:
        requests = VerificationRequests(coordinator.ask, tasks)
        group.create_task(requests.verify(1, "first", P, [A]))
        await coordinator.arrived.wait()
        for name in ("x", "y", "x"):
            group.create_task(requests.verify(1, name, P, [A]))
        await asyncio.sleep(0)
        coordinator.gate.set()

    ids = [[one.transactional_id for one in request.transactions] for request in coordinator.requests]
    assert ids == [["first"], ["x", "y"], ["x"]]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ConnectionError("gone"), ErrorCode.NETWORK_EXCEPTION),
        (TimeoutError(), ErrorCode.NETWORK_EXCEPTION),
        (IncompatibleBroker("no version 4"), ErrorCode.NONE),
    ],
)
async def test_a_broker_without_answer_is_tried_again_and_an_older_one_is_not_asked(
    failure: Exception, code: ErrorCode
) -> None:
    coordinator = Coordinator(failure=failure)
    async with background() as tasks:
        requests = VerificationRequests(coordinator.ask, tasks)

        assert await requests.verify(1, "x", P, [A]) == {A: code}


async def test_a_broker_that_stops_answers_what_waits() -> None:
    coordinator = Coordinator()
    coordinator.gate.clear()
    async with background() as tasks:
        requests = VerificationRequests(coordinator.ask, tasks)
        waiting = asyncio.ensure_future(requests.verify(1, "x", P, [A]))
        await coordinator.arrived.wait()

    async with asyncio.timeout(60):
        assert await waiting == {A: ErrorCode.NETWORK_EXCEPTION}


# ---- metrics


class Elsewhere:
    """The coordinators on other brokers, all of which answer as one `Coordinator`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.ask = coordinator.ask

    async def close(self) -> None:
        pass


class Here:
    """The coordinator of this broker."""

    def __init__(self, codes: Mapping[TopicPartition, ErrorCode], error: ErrorCode = ErrorCode.NONE) -> None:
        self.codes = codes
        self.error = error
        self.added: list[tuple[str, Producer, set[TopicPartition], int]] = []

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        return {partition: self.codes[partition] for partition in partitions}

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        version: int = 0,
    ) -> ErrorCode:
        self.added.append((transactional_id, producer, {*partitions}, version))
        return self.error


def verification_of(plane: DataPlane, here: Here, elsewhere: Coordinator, metrics: Metrics) -> Verification:
    return Verification(
        metadata=plane.metadata,
        here=here,
        coordinators=Elsewhere(elsewhere),
        is_enabled=lambda: True,
        metrics=metrics,
        clock=plane.environment.clock,
    )


@pytest.mark.parametrize("leader", [BROKER_ID, 2], ids=["here", "on another broker"])
async def test_verifications_are_measured_under_kafkas_names(tmp_path: Path, leader: int) -> None:
    plane, metrics = DataPlane(tmp_path), Metrics()
    plane.tell(TopicPartition(TRANSACTION_STATE_TOPIC, 0), leader)
    here = Here({A: ErrorCode.TRANSACTION_ABORTABLE, B: ErrorCode.NONE})
    elsewhere = Coordinator(ErrorCode.TRANSACTION_ABORTABLE)
    verification = verification_of(plane, here, elsewhere, metrics)

    async with verification:
        errors = await verification.verify("x", P, [A, B], knows_abortable=True)

    assert errors[A] is ErrorCode.TRANSACTION_ABORTABLE
    times = metrics.get("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")
    failures = metrics.get("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
    assert isinstance(times, Histogram)
    assert isinstance(failures, Meter)
    assert (times.count, failures.count) == (1, 1 if leader == BROKER_ID else 2)
    plane.logs.close()


# ---- partitions that join


@pytest.mark.parametrize("leader", [BROKER_ID, 2], ids=["here", "on another broker"])
async def test_partitions_join_a_transaction_of_version_2(tmp_path: Path, leader: int) -> None:
    plane, here, elsewhere = DataPlane(tmp_path), Here({}), Coordinator()
    plane.tell(TopicPartition(TRANSACTION_STATE_TOPIC, 0), leader)

    async with verification_of(plane, here, elsewhere, Metrics()) as verification:
        assert await verification.join("x", P, [A, B]) == {A: ErrorCode.NONE, B: ErrorCode.NONE}

    if leader == BROKER_ID:
        assert here.added == [("x", P, {A, B}, 2)]
    else:
        (asked,) = elsewhere.requests[0].transactions
        assert (asked.transactional_id, asked.producer_id, asked.verify_only) == ("x", 7, False)
    plane.logs.close()


@pytest.mark.parametrize("leader", [BROKER_ID, 2], ids=["here", "on another broker"])
async def test_a_fenced_producer_does_not_join(tmp_path: Path, leader: int) -> None:
    plane = DataPlane(tmp_path)
    plane.tell(TopicPartition(TRANSACTION_STATE_TOPIC, 0), leader)
    here, elsewhere = Here({}, ErrorCode.PRODUCER_FENCED), Coordinator(ErrorCode.PRODUCER_FENCED)

    async with verification_of(plane, here, elsewhere, Metrics()) as verification:
        assert await verification.join("x", P, [A]) == {A: ErrorCode.INVALID_PRODUCER_EPOCH}

    plane.logs.close()


async def test_nothing_joins_where_the_coordinator_is_not_known_or_too_old(tmp_path: Path) -> None:
    plane, elsewhere = DataPlane(tmp_path), Coordinator(failure=IncompatibleBroker("no version 4"))

    async with verification_of(plane, Here({}), elsewhere, Metrics()) as verification:
        unknown = await verification.join("x", P, [A])
        plane.tell(TopicPartition(TRANSACTION_STATE_TOPIC, 0), 2)
        too_old = await verification.join("x", P, [A])

    assert unknown == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert too_old == {A: ErrorCode.INVALID_TXN_STATE}
    plane.logs.close()
