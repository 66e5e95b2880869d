"""The transaction coordinator. It serves idempotent producers only: transactions are refused."""

from __future__ import annotations

from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.values import frozen


@frozen
class Transactions:
    """The part of the coordinator that handlers use: producer ids."""

    producer_ids: ProducerIds
