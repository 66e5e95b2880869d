"""Admission of records: whether `send` may take one now, on the fast path and on the general path."""

from __future__ import annotations

from typing import NoReturn, Protocol

from ottla.producer.accumulator import Appender
from ottla.producer.errors import ProducerClosed


class Transaction(Protocol):
    """The state of a transactional producer."""

    @property
    def takes_records(self) -> bool:
        """Whether a record may be sent."""

    def refuse(self, doing: str) -> NoReturn:
        """Raise the error that says why a call is not allowed now."""


class RecordAdmission:
    """Admits records while the producer is open, and in a transaction if it is transactional.

    `has_fast_path`: no setting needs to see single records. The fast path of the appender is opened and
    closed with the admission, so that the fast path has one flag to read.
    """

    def __init__(self, appender: Appender, *, has_fast_path: bool) -> None:
        self._appender = appender
        self._has_fast_path = has_fast_path
        self._transaction: Transaction | None = None
        self.is_open = False

    def open(self, transaction: Transaction | None = None) -> None:
        """Admit records; those of a transactional producer while `transaction` takes them."""
        self.is_open = True
        self._transaction = transaction
        self.update()

    def close(self) -> None:
        """Admit no record any more."""
        self.is_open = False
        self.update()

    def close_fast_path(self) -> None:
        """Send every record through the general path, which checks it, until `update`."""
        self._appender.fast_path = False

    def update(self) -> None:
        """Open the fast path if records may be sent now, close it otherwise."""
        takes_records = self._transaction is None or self._transaction.takes_records
        self._appender.fast_path = self.is_open and self._has_fast_path and takes_records

    def check_open(self) -> None:
        """Raise ProducerClosed unless the producer is open."""
        if not self.is_open:
            raise not_open()

    def check(self) -> None:
        """Raise unless a record may be sent now: ProducerClosed, TransactionError, or why it failed."""
        self.check_open()
        if self._transaction is not None and not self._transaction.takes_records:
            self._transaction.refuse("send records")


def not_open() -> ProducerClosed:
    """Return the error of a call before the start or after the end."""
    return ProducerClosed("the producer is not open; use it inside `async with`, or await start()")
