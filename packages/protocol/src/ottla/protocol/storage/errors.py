"""The one error of this package."""

__all__ = ["CorruptStorage"]


class CorruptStorage(ValueError):
    """The content of a file of the data directory is not what its format promises.

    `position` is the byte where it goes wrong, where there is one; the caller knows the file.
    """

    def __init__(self, problem: str, position: int | None = None) -> None:
        super().__init__(problem)
        self.position = position
