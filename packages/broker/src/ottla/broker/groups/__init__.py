"""Consumer groups: membership, assignments and committed offsets, kept in `__consumer_offsets`."""
