"""Data pipelines over topics on Spark, through PySpark: the name is kept, nothing is written yet."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Say what is missing to those who look for it."""
    raise AttributeError(
        f"ottla.pipeline {__version__} has no {name!r}: this package is empty so far. "
        "Spark's own Kafka source reads topics of an Ottla broker meanwhile"
    )
