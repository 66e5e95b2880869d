"""Limits on what clients and followers take: connections, replication, and the kinds of clients' quotas."""

from __future__ import annotations

from enum import Enum

__all__ = ["Quota"]


class Quota(Enum):
    """The quotas of clients. Requests of the first three kinds count for REQUEST, too."""

    PRODUCE = "produce"
    """Bytes that are produced."""
    FETCH = "fetch"
    """Bytes that are fetched."""
    CONTROLLER_MUTATION = "controller mutation"
    """Partitions that are created or deleted."""
    REQUEST = "request"
    """Time that requests take."""
    EXEMPT = "exempt"
    """Requests of brokers have no quota."""
