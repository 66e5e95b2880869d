"""Message ids: a producer stamps each record with an id, by which consumers recognise copies of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import count

from ottla.client.environment import nonce
from ottla.producer import ProducerInterceptor
from ottla.producer.record import ProducerRecord
from ottla.streams.dedupe.identity import MESSAGE_ID_HEADER


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
