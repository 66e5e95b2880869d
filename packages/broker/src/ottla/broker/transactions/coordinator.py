"""What the broker offers producers that need to be known: ids for idempotent ones."""

from __future__ import annotations

from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.values import frozen


@frozen
class Transactions:
    """The services of this package, as handlers use them."""

    producer_ids: ProducerIds
