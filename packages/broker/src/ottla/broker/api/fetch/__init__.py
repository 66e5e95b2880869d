"""Fetch: the general path, the fast path, sessions, and the wait for records."""
