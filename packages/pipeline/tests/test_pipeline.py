from __future__ import annotations

import pytest

import ottla.pipeline


def test_what_is_not_there_yet_says_so() -> None:
    with pytest.raises(AttributeError, match="empty so far"):
        ottla.pipeline.Pipeline  # noqa: B018
