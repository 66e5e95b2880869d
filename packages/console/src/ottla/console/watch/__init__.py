"""Watching clusters over time: samples of lag and of log ends, kept for two weeks, and their trends."""
