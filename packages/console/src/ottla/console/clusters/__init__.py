"""Clusters as the console sees them: connections, samples of their state, and pure views of these."""
