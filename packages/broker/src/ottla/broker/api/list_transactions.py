"""ListTransactions: the transactional ids that this broker coordinates (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_TXNS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.transactions.coordinator import TransactionFilter
from ottla.broker.transactions.events import TransactionState
from ottla.protocol.errors import InvalidRegularExpression
from ottla.protocol.messages.open_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.transactions.coordinator import TransactionCoordinator

_STATES: Final = {state.value: state for state in TransactionState}


class Needs(Protocol):
    """The parts of the broker that ListTransactions uses."""

    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """List the transactions that the filters admit, and that the client may describe.

    Unknown states are named and admit none.
    """
    named = dict.fromkeys(request.state_filters)
    known = frozenset(_STATES[name] for name in named if name in _STATES)
    unknown = [name for name in named if name not in _STATES]
    if unknown and not known:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    filter_ = TransactionFilter(
        known,
        frozenset(request.producer_id_filters),
        request.duration_filter,
        _matcher(request.transactional_id_pattern),
    )
    error, listed = services.transactions.list_transactions(filter_)
    return ListTransactionsResponse(
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=[
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=snapshot.producer.id,
                transaction_state=snapshot.state.value,
            )
            async for transactional_id, snapshot in context.paced(listed)
            if _is_shown(transactional_id, context)
        ],
    )


def _matcher(pattern: str | None) -> Callable[[str], object] | None:
    """Return what matches a pattern to whole ids. Raises `InvalidRegularExpression`.

    RE2 takes linear time, whatever the pattern; Python's own expressions may take exponential time.
    """
    if not pattern:
        return None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options).fullmatch  # type: ignore[no-any-return]
    except re2.error as error:
        raise InvalidRegularExpression(f"the pattern {pattern!r} is not valid") from error


def _is_shown(transactional_id: str, context: RequestContext) -> bool:
    resource = Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)
    return context.allows(DESCRIBE_TXNS, resource, is_asked_for=False)
