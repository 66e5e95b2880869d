from collections import deque

from ottla.broker.log.files.file_slices import Slice

def send_parts(parts: deque[bytes | Slice], fd: int, sent: int) -> int: ...
