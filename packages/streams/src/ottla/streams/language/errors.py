"""Errors of the stream language."""

from __future__ import annotations

from ottla.streams.errors import StreamsError


class TopologyError(StreamsError):
    """Streams and tables do not fit together; the message says what to change."""
