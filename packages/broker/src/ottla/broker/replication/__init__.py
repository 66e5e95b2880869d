"""Who leads a partition, who is in sync, and how far every replica has come."""
