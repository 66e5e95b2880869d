"""The keys of the broker's config classes, by Kafka's dotted names."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ottla.broker.runtime.frozen_classes import declared
from ottla.client.config_definition import INT, Setting, define


@functools.cache
def keys_of(cls: type[Any]) -> Mapping[str, Setting]:
    """List the keys of a configuration class, by Kafka's dotted name, in their order."""
    return {key.name: key for key in define(cls, declared(cls), integer=INT).values()}
