"""Prepared transactions: one process writes their records, and any process commits or aborts them."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.cluster import GROUP, TRANSACTION, Cluster
from ottla.client.errors import IDEMPOTENT_WRITE, ClientError, Need, error_about
from ottla.client.retry import Backoff, retrying
from ottla.producer.transactions.state import ProducerFenced
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
)
from ottla.protocol.messages.transactions import EndTxnRequest, EndTxnResponse

SECOND_VERSION = 2
END_WITH_NEXT_EPOCH = 5


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose records are all written: `end_prepared` commits or aborts it, from anywhere.

    The coordinator still aborts it once `transaction_timeout_ms` is over, and when a producer with the same
    transactional id starts. It can be pickled.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_empty: bool = False
    """No record and no offset was sent: there is nothing to end."""
    version: int = 1
    """The version of transactions that it was written in: with 2 the epoch rises with each one (KIP-890)."""


NextEpoch = tuple[int, int]
"""The producer id and epoch of the next transaction."""


async def end_prepared(
    cluster: Cluster, prepared: PreparedTransaction, *, committed: bool, backoff: Backoff | None = None
) -> NextEpoch | None:
    """Commit or abort a prepared transaction; may be called again with the same decision.

    Returns the epoch of the next transaction if that is another one, as in version 2 of transactions.
    Raises ProducerFenced if the coordinator aborted it, or a producer with the same id started;
    InvalidTxnState if it was ended before with the other decision, and for the commit in version 2 of
    transactions also if the coordinator aborted it; InvalidProducerIdMapping if the coordinator does not know
    the id (any more); TransactionalIdAuthorizationFailed; DeadlineExceeded if the
    coordinator did not answer within `default_api_timeout_ms`: then the transaction may be ended, or not.
    """
    if prepared.is_empty:
        return None
    return await retrying(
        f"{'committing' if committed else 'aborting'} the transaction",
        lambda: _end(cluster, prepared, committed),
        timeout_s=cluster.config.default_api_timeout_ms / 1_000,
        backoff=backoff or cluster.backoff,
    )


async def _end(cluster: Cluster, prepared: PreparedTransaction, committed: bool) -> NextEpoch | None:
    key = prepared.transactional_id
    request = EndTxnRequest(
        transactional_id=key,
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        committed=committed,
    )
    node_id = await cluster.coordinator(key, TRANSACTION)
    try:
        # A coordinator of Kafka 3.9, whose broker joined meanwhile, ends it with version 4 in the same epoch.
        version = END_WITH_NEXT_EPOCH if prepared.version == SECOND_VERSION else None
        answer = await cluster.send(node_id, request, EndTxnResponse, max_version=version)
    except ClientError:
        cluster.forget_coordinator(key, TRANSACTION)
        raise
    raise_of_coordinator(cluster, key, answer.error_code)
    return None if answer.producer_id < 0 else (answer.producer_id, answer.producer_epoch)


def raise_of_coordinator(
    cluster: Cluster,
    transactional_id: str,
    code: int,
    *,
    group: str | None = None,
    message: str | None = None,
) -> None:
    """Raise the error of a coordinator's response, if it is one; forget a coordinator that moved.

    The response is that of the group's coordinator if `group` is given.
    """
    if code == ErrorCode.NONE:
        return
    # As in Java's client: from a coordinator this code means that another producer uses the id. From the
    # leader of a partition it means less (KIP-588), and is not raised here.
    if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        raise ProducerFenced(transactional_id)
    needs = [Need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id), IDEMPOTENT_WRITE]
    if group is not None:
        needs.append(Need(Operation.READ, ResourceType.GROUP, group))
    error = error_about(code, message, *needs)
    if isinstance(error, NotCoordinator | CoordinatorNotAvailable):
        if group is None:
            cluster.forget_coordinator(transactional_id, TRANSACTION)
        else:
            cluster.forget_coordinator(group, GROUP)
    raise error
