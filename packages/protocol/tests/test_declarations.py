"""The package ships declarations, and the C headers they name, for other packages to compile against."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ottla.protocol

SHIPPED = Path(ottla.protocol.__file__).parent
ROOT = SHIPPED.parents[1]
PACKAGES = Path(__file__).parents[2]
DECLARATIONS = sorted(SHIPPED.rglob("*.pxd"))
DEPENDENTS = ["broker", "producer", "consumer"]


def test_the_declarations_are_beside_the_compiled_modules() -> None:
    names = {str(path.relative_to(SHIPPED)) for path in DECLARATIONS}

    assert {
        "native/fetch.pxd",
        "native/produce.pxd",
        "records/_batch.pxd",
        "records/_codec.pxd",
    } <= names


@pytest.mark.parametrize("path", DECLARATIONS, ids=lambda path: path.stem)
def test_every_header_that_a_declaration_names_is_there(path: Path) -> None:
    for header in re.findall(r'extern from "(ottla/[^"]+)"', path.read_text()):
        assert (ROOT / header).is_file()


@pytest.mark.parametrize("package", DEPENDENTS)
def test_no_other_package_has_a_copy_of_a_header(package: str) -> None:
    if not (PACKAGES / package / "src").exists():
        pytest.skip("tested apart from its siblings")

    copies = {path.name for path in (PACKAGES / package / "src").rglob("*.h")}

    assert not copies & {path.name for path in SHIPPED.rglob("*.h")}
