"""Patterns of RE2, and JSONPaths whose functions use them: their time grows with the text alone. Pure.

Python's own patterns can take years for a text of thirty letters, and a filter comes from anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import re2

from ottla.client.expressions import Undecided
from ottla.console.web.fields import Unclear

_PATTERN_BYTES: Final = 8 << 20
"""Memory of one pattern."""


@lru_cache(64)
def compiled_pattern(text: str) -> Any:
    """Return a pattern, for texts and bytes. Raises Unclear."""
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = _PATTERN_BYTES, False, True
    try:
        return re2.compile(text, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise Unclear(f"{text!r} is no pattern of RE2: {shown}") from None


def compiled_path(text: str) -> Callable[[Any], Iterator[Any]]:
    """Return a function that selects the nodes of a JSONPath (RFC 9535). Raises Unclear; it, Undecided."""
    import jsonpath  # most searches do without it

    try:
        path = _environment().compile(text)
    except (jsonpath.JSONPathError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is too deep"
        raise Unclear(f"{text!r} is no JSONPath: {reason}") from None

    def selected(value: Any) -> Iterator[Any]:
        try:
            for node in path.finditer(value):
                yield node.obj
        except (jsonpath.JSONPathError, Unclear):
            raise Undecided from None

    return selected


def _environment() -> Any:
    import jsonpath
    from jsonpath.function_extensions import Match, Search

    class SearchRe2(Search):
        """The function `search` of JSONPath."""

        def __call__(self, value: object, pattern: object) -> bool:
            are_texts = isinstance(value, str) and isinstance(pattern, str)
            return are_texts and compiled_pattern(pattern).search(value) is not None

    class MatchRe2(Match):
        """The function `match` of JSONPath: of a whole text."""

        def __call__(self, value: object, pattern: object) -> bool:
            are_texts = isinstance(value, str) and isinstance(pattern, str)
            return are_texts and compiled_pattern(pattern).fullmatch(value) is not None

    found = jsonpath.JSONPathEnvironment(strict=True)
    found.function_extensions |= {"search": SearchRe2(), "match": MatchRe2()}
    return found
