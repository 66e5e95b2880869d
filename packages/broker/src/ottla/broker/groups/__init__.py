"""Consumer groups: membership, assignments and committed offsets, stored in `__consumer_offsets`."""

__all__: list[str] = []
