"""Requests and responses, one module per API."""
