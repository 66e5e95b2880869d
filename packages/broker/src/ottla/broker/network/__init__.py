"""Sockets, frames and routes: from the bytes of a request to its handler, and back in order."""

__all__: list[str] = []
