"""Producer ids for idempotent producers. There is no transaction coordinator: transactions are refused."""

from __future__ import annotations

from ottla.broker.frozen_classes import frozen
from ottla.broker.transactions.producer_ids import ProducerIds


@frozen
class Transactions:
    """The part of the coordinator that handlers use: producer ids."""

    producer_ids: ProducerIds
