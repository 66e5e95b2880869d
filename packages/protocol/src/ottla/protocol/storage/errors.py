"""The one error of this package."""

__all__ = ["CorruptStorage"]


class CorruptStorage(ValueError):
    """A file of the data directory violates its format.

    `position` is the byte where it goes wrong, where there is one; the caller knows the file.
    """

    def __init__(self, problem: str, position: int | None = None) -> None:
        super().__init__(problem)
        self.position = position
