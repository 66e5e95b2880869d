"""The life of an assignment."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """DRAINING gives out no work, CLOSED counts no completion."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"
