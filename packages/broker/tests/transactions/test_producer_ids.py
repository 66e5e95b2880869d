import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.broker.transactions.producer_ids import BLOCK_SIZE, ProducerIds
from ottla.protocol.errors import CoordinatorLoadInProgress, UnknownServerError
from ottla.zookeeper import paths
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import ProducerIdBlock


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
async def session(ensemble: MemoryEnsemble) -> AsyncIterator[MemorySession]:
    async with ensemble.session() as session:
        yield session


async def test_ids_start_at_zero_and_rise(session: MemorySession) -> None:
    ids = ProducerIds(session, broker_id=1)

    assert [await ids.next_id() for _ in range(3)] == [0, 1, 2]


async def test_the_znode_holds_the_last_reserved_block(session: MemorySession) -> None:
    ids = ProducerIds(session, broker_id=1)
    for _ in range(BLOCK_SIZE + 1):
        await ids.next_id()

    data, _ = await session.get(paths.LATEST_PRODUCER_ID_BLOCK)

    assert ProducerIdBlock.decode(data) == ProducerIdBlock(1, BLOCK_SIZE, 2 * BLOCK_SIZE - 1)


async def test_an_empty_znode_counts_as_none(session: MemorySession) -> None:
    await session.create(paths.LATEST_PRODUCER_ID_BLOCK, b"")

    assert await ProducerIds(session, 1).next_id() == 0


async def test_two_brokers_never_allocate_the_same_id(ensemble: MemoryEnsemble) -> None:
    async with ensemble.session() as one, ensemble.session() as two:
        first, second = ProducerIds(one, 1), ProducerIds(two, 2)

        async def take(ids: ProducerIds) -> list[int]:
            return [await ids.next_id() for _ in range(BLOCK_SIZE + 500)]

        taken = await asyncio.gather(take(first), take(second), take(first))

    everything = [number for numbers in taken for number in numbers]
    assert len(everything) == len(set(everything))


async def test_ids_not_used_before_a_restart_are_never_used(session: MemorySession) -> None:
    await ProducerIds(session, 1).next_id()

    assert await ProducerIds(session, 1).next_id() == BLOCK_SIZE


async def test_producers_get_a_retriable_error_while_zookeeper_is_unreachable(
    ensemble: MemoryEnsemble, session: MemorySession
) -> None:
    ensemble.disconnect(session)

    with pytest.raises(CoordinatorLoadInProgress):
        await ProducerIds(session, 1).next_id()


async def test_a_block_whose_answer_was_lost_is_skipped(
    ensemble: MemoryEnsemble, session: MemorySession
) -> None:
    ids = ProducerIds(session, 1)
    first = await ids.next_id()
    ids = ProducerIds(session, 1)
    ensemble.lose_next_reply(session)
    with pytest.raises(CoordinatorLoadInProgress):
        await ids.next_id()
    async with asyncio.timeout(60):
        while not session.connected:  # noqa: ASYNC110 - reconnecting takes a few turns of the loop
            await asyncio.sleep(0)

    assert await ids.next_id() > first


async def test_ids_do_not_wrap(session: MemorySession) -> None:
    last = ProducerIdBlock(1, 2**63 - 1 - BLOCK_SIZE, 2**63 - 1)
    await session.create(paths.LATEST_PRODUCER_ID_BLOCK, last.encode())

    with pytest.raises(UnknownServerError):
        await ProducerIds(session, 1).next_id()
