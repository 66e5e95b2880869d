"""Read the assigned partitions: positions, fetches, decoding, and delivery to the application."""

__all__: list[str] = []
