"""Ordered parallel processing of a topic by key: so far the rules of it, not yet what runs them.

`lanes` orders work by key, `frontier` says what may be committed, `dedupe` drops what was seen.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Say what is missing to those who look for it."""
    raise AttributeError(
        f"ottla.streams {__version__} has no {name!r}: it holds ottla.streams.lanes, .frontier and .dedupe; "
        "what runs a processor over a topic is not written yet"
    )
