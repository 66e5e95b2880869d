"""C headers that two packages need are the same in both: wheels are built alone and cannot share them."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2]
ORIGINALS = PACKAGES / "protocol/src/ottla/protocol/records"


@pytest.mark.parametrize("package", ["producer", "consumer"])
@pytest.mark.parametrize("name", ["wire.h", "arrow_c.h"])
def test_a_copied_header_equals_its_original(package: str, name: str) -> None:
    copy = PACKAGES / package / "src/ottla" / package / name
    if not copy.exists():
        pytest.skip(f"ottla-{package} has no {name}")
    if not ORIGINALS.exists():
        pytest.skip("tested apart from its siblings")
    assert copy.read_text() == (ORIGINALS / name).read_text()
