"""Connections, cluster metadata, security, an admin client and the `ottla` command."""

__all__ = ["__version__"]

__version__ = "0.1.0"
