"""The cluster as one broker knows it: brokers, topics, settings, placement, and the ways to its peers."""
