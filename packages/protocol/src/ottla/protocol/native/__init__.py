"""Plain Produce and Fetch requests, read from bytes and answered in bytes without a message object.

A plain request asks for nothing special, so nearly all of a busy broker's are. Others are left to
`ottla.protocol.messages`, which decodes every request; where both read one they agree, byte for byte. Memory
that holds the requests is the caller's, and so are the frames in it.

The work is native (`produce.pyx`, `fetch.pyx`). Other compiled modules `cimport` these, and
`ottla.protocol.records._batch` beside them: `docs/design/request-path.md` says which promise that rests on.
"""

from ottla.protocol.native.fetch import PlainFetch
from ottla.protocol.native.produce import ProduceRun

__all__ = ["PlainFetch", "ProduceRun"]
