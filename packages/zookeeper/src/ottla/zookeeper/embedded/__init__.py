"""A ZooKeeper for one machine, in this process: for development, tests and single-node brokers.

It speaks ZooKeeper's wire protocol, keeps a durable log when given a directory, and has no
ensemble behind it. A cluster uses a real ZooKeeper.
"""
