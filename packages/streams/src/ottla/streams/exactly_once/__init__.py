"""Outputs and offsets in one transaction."""
