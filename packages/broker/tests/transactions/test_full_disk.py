"""A disk that is full amid the end of a transaction: it ends the same way in all partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.broker.api.testing import BROKER_ID, DataPlane, batch_of
from ottla.broker.controller.testing import LoopClock, run_in_virtual_time
from ottla.broker.coordinators.internal_topic_log import ReplicatedStore
from ottla.broker.log.files.fake_files import Loss, MemoryFiles
from ottla.broker.metrics import Metrics
from ottla.broker.peers import Peer
from ottla.broker.runtime.environment import Environment
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.events import Producer
from ottla.broker.transactions.marker_destinations import MarkerDestinations
from ottla.broker.transactions.markers import PartitionMarkers
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, KafkaError
from ottla.protocol.records import ControlType, read_end_transaction_marker, read_header, split_batches
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.zookeeper.testing import MemoryEnsemble

PLENTY = 1 << 30
ID = "copies"
TIMEOUT_MS = 60_000
TOUCHED = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)]
LATER_S = 300
"""The timeout of the transaction is over by then."""
LEFT_BYTES = range(0, 700, 7)
"""Free space when the transaction ends, from none to more than its records and markers take."""


def no_other_broker(broker_id: int) -> Peer:
    raise BrokerNotAvailable(f"Broker {broker_id} is not registered.")


class AtOnce(ThreadPoolExecutor):
    """Runs everything on the caller's thread: virtual time would pass while another one works."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **more))
        except Exception as error:
            done.set_exception(error)
        return done


class Node:
    """One broker's logs, with the coordinator and the markers that write into them."""

    def __init__(self, files: MemoryFiles, ensemble: MemoryEnsemble) -> None:
        self.plane = DataPlane(Path("/data"), files=files)
        self._ensemble = ensemble
        self._stack = AsyncExitStack()

    async def start(self, epoch: int) -> None:
        """Lead every partition, in an epoch."""
        plane = self.plane
        asyncio.get_running_loop().set_default_executor(AtOnce())
        session = await self._stack.enter_async_context(self._ensemble.session())
        markers = PartitionMarkers(
            plane.replicas, Environment(clock=LoopClock()), TIMEOUT_MS, lambda *_: None
        )
        self.coordinator = TransactionCoordinator(
            config=plane.config,
            environment=Environment(clock=LoopClock()),
            metrics=Metrics(),
            store=ReplicatedStore(plane.replicas, TRANSACTION_STATE_TOPIC, lambda: 1),
            cluster=MarkerDestinations(plane.metadata, no_other_broker, session, markers.write),
            producer_ids=ProducerIds(session, BROKER_ID),
        )
        await self._stack.enter_async_context(self.coordinator)
        plane.replicas.subscribe(self.coordinator)
        for topic, partition in [*TOUCHED, TopicPartition(TRANSACTION_STATE_TOPIC, 0)]:
            await plane.lead(topic, partition, leader_epoch=epoch)

    async def kill(self) -> None:
        """End as a process does that is killed: what was written stays."""
        await self._stack.aclose()

    async def begin(self) -> Producer:
        """Begin a transaction with a record in each partition."""
        producer = (await self.coordinator.initialize(ID, TIMEOUT_MS)).producer
        assert producer is not None
        assert await self.coordinator.add_partitions(ID, producer, TOUCHED) is ErrorCode.NONE
        for one in TOUCHED:
            batch = batch_of(
                b"a", producer_id=producer.id, epoch=producer.epoch, sequence=0, transactional=True
            )
            self.plane.replicas.leader(one).append(batch, required_acks=-1, now_ms=1)
        return producer

    async def commit_until_it_is_done(self, producer: Producer) -> None:
        """Commit as a client does that repeats what may be repeated."""
        while (error := await self.coordinator.end(ID, producer, commit=True)) is not ErrorCode.NONE:
            assert error in RETRIABLE
            await asyncio.sleep(0.1)

    def ends(self) -> list[set[ControlType]]:
        """The kinds of the markers in each partition."""
        return [self._ends(one) for one in TOUCHED]

    def _ends(self, one: TopicPartition) -> set[ControlType]:
        log = self.plane.replicas.leader(one).log
        kinds, offset = set[ControlType](), 0
        while offset < log.log_end_offset:
            for batch in split_batches(log.read(offset, 1 << 20, up_to=log.log_end_offset).read()):
                if read_header(batch).is_control and (marker := read_end_transaction_marker(batch)):
                    kinds.add(marker.type)
                offset = read_header(batch).next_offset
        return kinds

    def is_stable(self) -> bool:
        """Whether no partition holds an open transaction."""
        hosted = [self.plane.replicas.leader(one) for one in TOUCHED]
        return all(one.log.last_stable_offset == one.high_watermark for one in hosted)


RETRIABLE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


async def ended_on_a_full_disk(left_bytes: int, *, killed: bool, goes_on: bool) -> None:
    """End a transaction on a disk with little room, which gets more later."""
    files, ensemble = MemoryFiles(PLENTY), MemoryEnsemble()
    node = Node(files, ensemble)
    await node.start(1)
    producer = await node.begin()
    free = PLENTY - files.take(PLENTY)
    files.give(left_bytes)

    answer = await node.coordinator.end(ID, producer, commit=True)
    await asyncio.sleep(5)

    assert answer is ErrorCode.NONE or answer in RETRIABLE
    before = set[ControlType]().union(*node.ends())
    assert before <= {ControlType.COMMIT}
    assert answer is ErrorCode.NONE or not before
    if killed:
        await node.kill()
        node = Node(files.crash(Random(0), Loss.KEPT), ensemble)
        await node.start(2)
    else:
        files.give(free)
    if goes_on and answer is not ErrorCode.NONE:
        await node.commit_until_it_is_done(producer)
    await asyncio.sleep(LATER_S)
    wanted = ControlType.COMMIT if goes_on or answer is ErrorCode.NONE else ControlType.ABORT
    assert node.ends() == [{wanted}] * len(TOUCHED)
    assert node.is_stable()
    await node.kill()


@pytest.mark.parametrize("goes_on", [True, False], ids=["the client goes on", "the client is gone"])
@pytest.mark.parametrize("killed", [False, True], ids=["the broker lives", "the broker is killed"])
def test_a_transaction_that_ends_on_a_full_disk_ends_the_same_way_everywhere(
    killed: bool, goes_on: bool
) -> None:
    for left_bytes in LEFT_BYTES:
        try:
            run_in_virtual_time(ended_on_a_full_disk(left_bytes, killed=killed, goes_on=goes_on))
        except (AssertionError, KafkaError) as error:
            error.add_note(f"{left_bytes} bytes were left")
            raise
