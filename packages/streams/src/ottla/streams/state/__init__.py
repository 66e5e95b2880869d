"""Keyed state stores with a changelog topic."""
