"""Ordered parallel processing of a topic by key: the decision cores, without a runner so far.

`lanes` orders work by key, `frontier` finds the offset to commit, `dedupe` drops repeated ids.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Raise AttributeError that names what the package has so far."""
    raise AttributeError(
        f"ottla.streams {__version__} has no {name!r}: it contains ottla.streams.lanes, .frontier "
        "and .dedupe; the runner that processes a topic is not written yet"
    )
