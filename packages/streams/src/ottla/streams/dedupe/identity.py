"""Identities of records, by which copies of one message are recognised; a producer can stamp ids for them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from ottla.client.environment import nonce
from ottla.consumer.record import ConsumerRecord
from ottla.producer import ProducerInterceptor
from ottla.producer.record import ProducerRecord
from ottla.streams.dedupe.errors import IdentityFailed

MESSAGE_ID_HEADER: Final = "message-id"
"""The header in which producers stamp message ids."""

LONGEST_IDENTITY_BYTES: Final = 64
"""Longer identities are replaced by their digest, so that a store's keys stay small."""

_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a record: a name for messages, and the function that reads it."""

    name: str
    """Its source in the record, such as "header 'message-id'"."""
    read: Callable[[ConsumerRecord], object]
    """Returns bytes, text or an integer; None for a record without an identity."""

    def of(self, record: ConsumerRecord) -> bytes | None:
        """Return the identity of a record, at most 64 bytes; None if it has none. Raises IdentityFailed."""
        try:
            found = self.read(record)
        except Exception as error:
            raise self._failure(record, f"{self.name} raised {type(error).__name__}: {error}") from error
        if found is None:
            return None
        if isinstance(found, str):
            found = found.encode("utf-8", "surrogatepass")
        elif isinstance(found, int):
            found = b"%d" % found
        if not isinstance(found, bytes):
            kind = type(found).__name__
            raise self._failure(record, f"{self.name} is a {kind}; it must be bytes, text or an integer")
        return shortened(found)

    def _failure(self, record: ConsumerRecord, reason: str) -> IdentityFailed:
        return IdentityFailed(record.topic, record.partition, record.offset, reason)


def shortened(identity: bytes) -> bytes:
    """Return an identity of at most 64 bytes as it is, and the BLAKE2b digest (32 bytes) of a longer one."""
    if len(identity) <= LONGEST_IDENTITY_BYTES:
        return identity
    return hashlib.blake2b(identity, digest_size=_DIGEST_BYTES).digest()


def by_key() -> Identity:
    """Identify records by their key: the first record of a key within the window is handled, no later one."""
    return Identity("key", _key)


def by_header(name: str) -> Identity:
    """Identify records by a header; an empty header counts as none. Of several, the first one counts."""
    return Identity(f"header {name!r}", _HeaderReader(name))


def by_message_id(header: str = MESSAGE_ID_HEADER) -> Identity:
    """Identify records by the message id that producers stamp; see `MessageIds`."""
    return by_header(header)


def by_function(function: Callable[[ConsumerRecord], object]) -> Identity:
    """Identify records by a function, which returns bytes, text, an integer, or None for no identity."""
    return Identity(getattr(function, "__name__", type(function).__name__), function)


def _key(record: ConsumerRecord) -> object:
    return record.key


@dataclass(frozen=True, slots=True)
class _HeaderReader:
    header: str

    def __call__(self, record: ConsumerRecord) -> bytes | None:
        return next((value for name, value in record.headers if name == self.header and value), None)


class MessageIds(ProducerInterceptor):
    """Adds a header with a unique id to each record: `Producer(..., interceptors=[MessageIds()])`.

    The id is made once per call of `send`, so the producer's own retries carry the same one. A record that
    has the header already keeps it: give your own id if you repeat a call of `send` after an error, because
    the first call may have been written. An id is 192 random bits of this process and a counter.
    """

    def __init__(self, header: str = MESSAGE_ID_HEADER, *, source: Callable[[], str] = nonce) -> None:
        self.header = header
        self._source = source
        self._process_id = -1
        self._prefix = ""
        self._numbers = count()

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """Return the record with an id; None if it has one."""
        headers = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
        listed = list(headers)
        if any(name == self.header and value for name, value in listed):
            # The headers may be an iterator, which is used up now.
            return record._replace(headers=listed)
        return record._replace(headers=[*listed, (self.header, self.next_id())])

    def next_id(self) -> bytes:
        """Return an id that no other producer and no other call returns."""
        # A child process after a fork would repeat the ids of its parent.
        if (process_id := os.getpid()) != self._process_id:
            self._process_id, self._prefix, self._numbers = process_id, self._source(), count()
        return f"{self._prefix}-{next(self._numbers)}".encode()
