"""A cluster in one process: the product's brokers in virtual time, with faults drawn from a seed."""
