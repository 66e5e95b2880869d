"""Producer ids, and the transaction coordinator."""

__all__: list[str] = []
