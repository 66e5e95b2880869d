"""Pytest fixture that gives a test a schema registry, empty and on a free port.

    def test_orders_have_a_schema(ottla_broker, ottla_registry):
        registry = SchemaRegistryClient({"url": ottla_registry.url})

It keeps its schemas in a topic of `ottla_broker`, which ottla-broker brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.registry.testing import RegistryThread


@pytest.fixture
def ottla_registry(ottla_broker: Any) -> Iterator[RegistryThread]:
    """A registry in this process with Confluent's interface, started for this test and stopped after it."""
    from ottla.registry.testing import RegistryThread

    with RegistryThread(ottla_broker.bootstrap_servers) as registry:
        yield registry
