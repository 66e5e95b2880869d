"""From a call of `send` to a batch: checks, serializers, metadata, buffer space, partitioner."""

__all__: list[str] = []
