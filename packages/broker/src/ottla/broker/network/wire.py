"""The native part of a connection (`_wire.pyx`): Produce's fast path, and one write per turn of the loop.

Requests that it cannot answer at once stay in the receive buffer for `Connection.pump`, which handles every
request, those of the fast path included.
"""

from ottla.broker.network._wire import Tally, Wire, WriteRound

__all__ = ["Tally", "Wire", "WriteRound"]
