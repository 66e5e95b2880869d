"""The documented options of the data sources match their behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.pipeline.options import options_of
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.source.config import SourceConfig

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ: dict[str, tuple[type[Any], Callable[[dict[str, str]], Any]]] = {
    "batch": (
        SourceConfig,
        lambda given: SourceConfig.of(BROKERS | {"subscribe": "a"} | given, streaming=False),
    ),
    "stream": (
        SourceConfig,
        lambda given: SourceConfig.of(BROKERS | {"subscribe": "a"} | given, streaming=True),
    ),
    "sink": (SinkConfig, lambda given: SinkConfig.of(BROKERS | given)),
    "segments": (SegmentsConfig, lambda given: SegmentsConfig.of({"path": "/data"} | given)),
}


@pytest.mark.parametrize("kind", list(READ))
def test_defaults_are_those_that_are_shown(kind: str) -> None:
    cls, read = READ[kind]
    shown = [
        each
        for each in options_of(cls)
        if each.default is not None and (kind not in ("batch", "stream") or each.only in ("", kind))
    ]

    assert shown
    for each in shown:
        assert read({each.name: each.default or ""}) == read({}), each.name


@pytest.mark.parametrize("kind", list(READ))
def test_every_option_has_a_name_of_its_own_and_is_said_what_it_does(kind: str) -> None:
    options = list(options_of(READ[kind][0]))

    assert len({each.name.lower() for each in options}) == len(options)
    assert all(each.meaning and not each.meaning.endswith(".") for each in options)
