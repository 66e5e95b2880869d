"""Consumer groups of the consumer protocol (KIP-848), with classic members beside (its migration)."""

__all__: list[str] = []
