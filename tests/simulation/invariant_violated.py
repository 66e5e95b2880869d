"""The failure of a schedule."""


class InvariantViolated(AssertionError):
    """The cluster broke an invariant; the message begins with its name."""
