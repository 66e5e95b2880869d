from __future__ import annotations

import json
import re

import pytest

from ottla.producer.cli_load import GeneratedLines, Pace, template


def test_a_template_makes_a_line_for_each_number() -> None:
    made = template('{"n": {{n}}, "a": {{random:1-3}}, "c": "{{choice:x|y}}", "id": "{{hex}}"}')
    found = [json.loads(made(number)) for number in range(50)]
    assert [line["n"] for line in found] == list(range(50))
    assert {line["a"] for line in found} == {1, 2, 3}
    assert {line["c"] for line in found} == {"x", "y"}
    assert all(re.fullmatch("[0-9a-f]{8}", line["id"]) for line in found)
    assert re.fullmatch(r"\d{13} 20\d\d-\d\d-\d\dT.*", template("{{now_ms}} {{now}}")(0))


@pytest.mark.parametrize("field", ["name", "random", "random:a-b", "choice:", "n:1"])
def test_an_unknown_field_names_those_that_there_are(field: str) -> None:
    with pytest.raises(ValueError, match=r"\}\} is no field of a template: n, hex, now, now_ms"):
        template(f"x {{{{{field}}}}}")


def test_generated_lines_end_after_their_count() -> None:
    lines = GeneratedLines("v{{n}}", "k{{n}}", 3)
    assert lines.read(1) == b"k0\x1fv0\n"
    assert lines.read(1_000) == b"k1\x1fv1\nk2\x1fv2\n"
    assert lines.read(1_000) == b""


def test_a_pace_pauses_until_the_next_record_is_due() -> None:
    pace = Pace(100, now_s=10.0)
    assert pace.slice_records == 5
    assert pace.pause_s(5, now_s=10.0) == pytest.approx(0.05)
    assert pace.pause_s(5, now_s=10.2) == 0  # late: the next records catch up
    assert pace.pause_s(20, now_s=10.2) == pytest.approx(0.1)
    assert Pace(None, 0).pause_s(1_000, 0) == 0
