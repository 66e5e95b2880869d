from ottla.protocol.records import Buffer

class OffsetMap:
    """The newest offset of each key, in 24 bytes a slot: keys by a hash of 128 bits, which `hash_key` keys.

    `latest_offset` is the end of what was added: records above it are kept with any key. It takes
    keys until `slots * load_factor` are in it. Used by one thread.
    """

    def __init__(self, slots: int, load_factor: float, hash_key: bytes) -> None: ...

    latest_offset: int

    @property
    def slots(self) -> int:
        """The slots there are."""
    @property
    def most(self) -> int:
        """The most keys it takes."""
    @property
    def count(self) -> int:
        """The keys it has."""
    def __len__(self) -> int: ...
    def put(self, key: bytes, offset: int) -> bool:
        """Set the newest offset of a key; False, and nothing is changed, when the map is full."""
    def get(self, key: bytes) -> int:
        """The newest offset of a key, -1 without any."""
    def add(self, batch: Buffer, from_offset: int, *, max_decompressed_bytes: int) -> bool:
        """Put the keys of a sound v2 batch from an offset on; False when the map is full before its end.

        Raises UnreadableRecords, then none of its keys is in, DecompressedTooLarge, and
        UnsupportedCompressionType.
        """
    def add_plain(self, batches: Buffer, from_offset: int) -> int:
        """Put the keys of plain batches as `add` does, many at a time and without the GIL.

        Raises `latest_offset`. Returns the size of those that were added. The next one is torn, damaged,
        compressed, empty, of a transaction or of an older format, or the map is full before its end.
        """
    def release(self) -> None:
        """Give the memory back: it takes no keys and answers no questions any more.

        Blocks for 1 ms per 10 MB that were used, without the GIL: for a thread.
        """

def retained(
    batch: Buffer,
    keys: OffsetMap,
    now_ms: int,
    horizon_ms: int,
    *,
    marked: bool,
    max_decompressed_bytes: int,
) -> Buffer | None:
    """Return the records of a sound v2 batch that compaction keeps: the batch itself, a new one, or None.

    Kept are records above `latest_offset`, and those that are the newest of their key: a tombstone only until
    the batch's delete horizon, which is `horizon_ms` from here on if it had none (KIP-534). `marked` keeps
    all records, and sets the horizon of a marker whose transaction has none left. Offsets, times and codec
    stay. Raises UnreadableRecords, DecompressedTooLarge, and UnsupportedCompressionType.
    """
