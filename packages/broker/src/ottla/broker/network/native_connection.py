"""The native part of a connection (`_native_connection.pyx`): receiving, the fast paths, and the write round.

Requests that fast paths do not answer at once stay in the receive buffer for `RequestIntake.pump`, which
begins every request, those of the fast paths included.
"""

from ottla.broker.network._native_connection import NativeConnection, NativeIntake, Unanswered, WriteRound

__all__ = ["NativeConnection", "NativeIntake", "Unanswered", "WriteRound"]
