"""The documented options of the data sources match their behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ottla.pipeline.options import Option
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.segments.options import OPTIONS as OF_SEGMENTS
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.options import OPTIONS as OF_SINK
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.options import OPTIONS as OF_SOURCE

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ: dict[str, tuple[Sequence[Option], Callable[[dict[str, str]], Any]]] = {
    "batch": (
        OF_SOURCE,
        lambda given: SourceConfig.of(BROKERS | {"subscribe": "a"} | given, streaming=False),
    ),
    "stream": (
        OF_SOURCE,
        lambda given: SourceConfig.of(BROKERS | {"subscribe": "a"} | given, streaming=True),
    ),
    "sink": (OF_SINK, lambda given: SinkConfig.of(BROKERS | given)),
    "segments": (OF_SEGMENTS, lambda given: SegmentsConfig.of({"path": "/data"} | given)),
}


@pytest.mark.parametrize("kind", list(READ))
def test_defaults_are_those_that_are_shown(kind: str) -> None:
    options, read = READ[kind]
    shown = [
        each
        for each in options
        if each.default is not None and (kind not in ("batch", "stream") or each.only in ("", kind))
    ]

    assert shown
    for each in shown:
        assert read({each.name: each.default or ""}) == read({}), each.name


@pytest.mark.parametrize("kind", list(READ))
def test_every_option_has_a_name_of_its_own_and_is_said_what_it_does(kind: str) -> None:
    options, _ = READ[kind]

    assert len({each.name.lower() for each in options}) == len(options)
    assert all(each.meaning and not each.meaning.endswith(".") for each in options)
