"""Handlers of requests: one file for each API, each with one `handle`."""
