"""Connections, cluster metadata, security, an admin client and the `ottla` command."""
