"""Producer ids, unique in the cluster: each broker reserves blocks of them in ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import CoordinatorLoadInProgress, UnknownServerError
from ottla.zookeeper import paths
from ottla.zookeeper.errors import BadVersion, NodeExists, NoNode, ZooKeeperError
from ottla.zookeeper.znodes import ProducerIdBlock

if TYPE_CHECKING:
    from ottla.zookeeper.session import Session

log = logging.getLogger(__name__)

BLOCK_SIZE: Final = 1_000
_LARGEST_ID: Final = 2**63 - 1
_ATTEMPTS: Final = 100


class ProducerIds:
    """Allocates producer ids that no other broker allocates.

    A block is reserved by a conditional write over the last reserved one. Ids of a block that was not used up
    before a restart are never used: there are enough.
    """

    def __init__(self, session: Session, broker_id: int) -> None:
        self._session = session
        self._broker_id = broker_id
        self._next = 0
        self._last = -1
        self._claiming = asyncio.Lock()

    async def next_id(self) -> int:
        """Return an id that was never returned before, by any broker.

        Raises CoordinatorLoadInProgress, which producers retry, while ZooKeeper does not answer.
        """
        while self._next > self._last:
            async with self._claiming:
                if self._next > self._last:
                    await self._claim()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _claim(self) -> None:
        block = await self.claim_for(self._broker_id)
        self._next, self._last = block.first, block.last

    async def claim_for(self, broker_id: int) -> ProducerIdBlock:
        """Reserve a block of ids for a broker, as the controller does for brokers of later levels (KIP-730).

        Raises CoordinatorLoadInProgress while ZooKeeper does not answer.
        """
        try:
            for _ in range(_ATTEMPTS):
                block = await self._try_to_claim(broker_id)
                if block is not None:
                    log.info("producer ids claimed", extra={"first": block.first, "last": block.last})
                    return block
        except ZooKeeperError as error:
            # If the write was applied nevertheless, its block is lost, and the next claim skips it.
            raise CoordinatorLoadInProgress(f"No producer ids can be claimed now: {error}") from error
        raise CoordinatorLoadInProgress("Too many brokers claim producer ids at once.")

    async def _try_to_claim(self, broker_id: int) -> ProducerIdBlock | None:
        path = paths.LATEST_PRODUCER_ID_BLOCK
        try:
            data, stat = await self._session.get(path)
        except NoNode:
            block = _block_after(-1, broker_id)
            try:
                await self._session.create(path, block.encode(), make_parents=True)
            except NodeExists:
                return None
            return block
        block = _block_after(ProducerIdBlock.decode(data).last if data else -1, broker_id)
        try:
            await self._session.set(path, block.encode(), stat.version)
        except BadVersion:
            return None
        return block


def _block_after(last: int, broker_id: int) -> ProducerIdBlock:
    if last > _LARGEST_ID - BLOCK_SIZE:
        raise UnknownServerError("All producer ids have been allocated.")
    return ProducerIdBlock(broker_id, last + 1, last + BLOCK_SIZE)
