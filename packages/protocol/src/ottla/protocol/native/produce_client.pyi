from ottla.protocol.records.compression import Buffer

FIRST_VERSION: int
"""The first version with record batches of magic 2."""
LAST_VERSION: int

def produce_request(
    version: int,
    correlation_id: int,
    client_id: bytes | None,
    transactional_id: bytes | None,
    acks: int,
    timeout_ms: int,
    topics: list[tuple[bytes, list[tuple[int, bytes]]]],
) -> list[bytes]:
    """Return a framed Produce request in parts: a small one is one; batches of a large one are not copied.

    `topics` are names with partitions and their batches. Raises ValueError for versions below 3 and above 11.
    """

def offsets_of(response: Buffer, version: int) -> tuple[int, dict[tuple[str, int], tuple[int, int]]] | None:
    """Read a response without its size: throttle time, base offset and append time by topic and partition.

    Returns None if a leader reports an error, or if anything is unusual: `ProduceResponse` reads every
    response.
    """
