"""Outputs and offsets in one transaction."""

__all__: list[str] = []
