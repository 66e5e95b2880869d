"""Clusters of broker processes on one machine: their files, their start, and their end."""
