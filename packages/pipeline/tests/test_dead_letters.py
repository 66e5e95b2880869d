"""The dead letters of a repeated batch whose declaration was corrected."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipeline.jobs.declaration import Topics
from ottla.pipeline.jobs.state_files import StateFile
from ottla.pipeline.jobs.topic_sink import TopicSink, parses_for_dead_letters
from ottla.pipeline.jobs.value_parsing import Parse

FIRST = Parse(format="json", fields={"time": "TIMESTAMP", "level": "STRING"}, required=["time"])
MENDED = FIRST.model_copy(update={"required": ["time", "level"], "time_format": "yyyy"})


@pytest.fixture
def begun(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "dead-letters.json")


def test_a_batch_without_bad_lines_needs_no_declaration_and_keeps_none(begun: StateFile) -> None:
    assert parses_for_dead_letters(begun, 7, FIRST, has_dead=False) == []
    assert begun.read() == {}


def test_the_first_declaration_comes_before_the_corrected_one(begun: StateFile) -> None:
    assert parses_for_dead_letters(begun, 7, FIRST, has_dead=True) == [FIRST]
    assert parses_for_dead_letters(begun, 7, MENDED, has_dead=True) == [FIRST, MENDED]
    assert parses_for_dead_letters(begun, 7, FIRST, has_dead=True) == [FIRST, MENDED]


def test_the_first_declaration_stays_though_no_line_is_malformed_any_more(begun: StateFile) -> None:
    parses_for_dead_letters(begun, 7, FIRST, has_dead=True)

    assert parses_for_dead_letters(begun, 7, MENDED, has_dead=False) == [FIRST]


def test_the_next_batch_begins_anew(begun: StateFile) -> None:
    parses_for_dead_letters(begun, 7, FIRST, has_dead=True)

    assert parses_for_dead_letters(begun, 8, MENDED, has_dead=True) == [MENDED]


@pytest.mark.parametrize(
    ("given", "is_so"),
    [
        ({"delivery": "exactly-once"}, True),
        ({"options": {"Delivery": "Exactly-Once"}}, True),
        ({"delivery": "dedupe"}, False),
        ({}, False),
    ],
)
def test_whether_letters_are_sent_exactly_once_is_what_the_sink_makes_of_it(
    given: dict[str, object], is_so: bool
) -> None:
    source = Topics.model_validate({"bootstrap_servers": "there:1", "topics": ["orders"]})
    sink = TopicSink.model_validate({"topic": "dead", **given})

    assert sink.is_exactly_once(source) is is_so
