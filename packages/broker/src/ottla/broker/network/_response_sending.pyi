from collections import deque

from ottla.broker.log.files.file_slices import Slice

class UnsentParts:
    """Parts of one connection's responses that were not sent; the fields that compiled modules use."""

    parts: deque[bytes | Slice]
    """In the order of the responses."""
    has_regions: bool
    waiting: bool
    """Whether a file region waits until the socket takes more."""
    transport_paused: bool
    """Whether the transport still has bytes to write."""
    queued_bytes: int
    """Bytes queued since everything was last written; at least those that are not written."""
    max_queued_bytes: int
    """Bytes at which they are written before the next request begins."""

def send_parts(parts: deque[bytes | Slice], fd: int, sent: int) -> int:
    """Send parts to a socket, beginning behind `sent` bytes of the first.

    Returns how much of the first part that is left is sent, or -1 when all parts are. Raises OSError.
    """
