"""The network serves routes and knows none of their APIs; compiled modules are seen by no linter."""

from __future__ import annotations

import re
from typing import Final

import pytest

from structure.sources import ROOT, Source, package_sources

NETWORK: Final = "packages/broker/src/ottla/broker/network/"
NAMES_OF_APIS: Final = re.compile(
    r"ApiKey\.[A-Z]\w+|ottla\.protocol\.(?:messages|native)|ottla\.broker\.api\b"
)


def _names_in(source: Source) -> list[str]:
    return [f"{source}: {found[0]}" for found in NAMES_OF_APIS.finditer(source.text)]


def test_the_network_names_no_api_and_no_message() -> None:
    sources = [source for source in package_sources() if str(source).startswith(NETWORK)]
    declarations = [
        Source(path) for suffix in ("pxd", "pyi") for path in (ROOT / NETWORK).glob(f"*.{suffix}")
    ]
    assert any(source.is_native for source in sources)

    named = [
        name
        for source in [*sources, *declarations]
        if source.path.name != "testing.py"
        for name in _names_in(source)
    ]

    assert not named, "\n".join(named)


@pytest.mark.parametrize(
    "text",
    [
        "if api_key == ApiKey.PRODUCE:",
        "from ottla.protocol.native.fetch cimport PlainFetch",
        "from ottla.broker.api.fetch import general",
    ],
)
def test_the_name_of_an_api_is_found(text: str) -> None:
    assert NAMES_OF_APIS.search(text)
