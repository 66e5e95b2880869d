"""Tools for brokers: clusters on one machine and on hosts, dumps of logs, a rebuilt coordinator."""

__version__ = "0.1.0"

__all__ = ["__version__"]
