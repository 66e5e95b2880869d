"""Principals, as ACLs, quotas and audit logs name them."""

from __future__ import annotations

from typing import Final

from ottla.zookeeper.frozen_classes import frozen


@frozen
class Principal:
    """Identity of a client: its type and name, written `User:alice`."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of a client that did not authenticate: every client of a PLAINTEXT listener."""
