"""Ordered parallel processing of a topic by key."""
