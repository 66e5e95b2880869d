"""Requests to other brokers of the cluster."""
