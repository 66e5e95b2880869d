"""Errors of tests without a broker."""

from __future__ import annotations

from ottla.streams.errors import StreamsError


class DriverMisused(StreamsError):
    """A StreamsTest was used in a way that cannot work; the message says what to change."""


class NeverSettles(StreamsError):
    """Code runs on and on without waiting for anything, or what is waited for never happens."""
