"""A registry in memory, behind its real interface, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.registry.testing import RegistryThread


@pytest.fixture(scope="module")
def registry_url() -> Iterator[str]:
    """The address of a registry that is empty when the module begins."""
    with RegistryThread() as registry:
        yield registry.url
