"""The native part of a connection (`_native_connection.pyx`): the fast path of Produce, and the write round.

Requests that it cannot answer at once stay in the receive buffer for `Connection.pump`, which handles every
request, those of the fast path included.
"""

from ottla.broker.network._native_connection import NativeConnection, Tally, WriteRound

__all__ = ["NativeConnection", "Tally", "WriteRound"]
