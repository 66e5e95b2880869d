"""The parts that every coordinator shares: states that live in a partition of an internal topic."""
