"""Mistakes that the kinds of pipelines find in their declarations."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ottla.pipeline.jobs.declaration_errors import DeclarationError
from ottla.pipeline.jobs.declaration_files import about, job_class, kinds, read_job
from ottla.pipeline.jobs.samples import sample_declaration, sample_kinds
from ottla.pipeline.jobs.samples.sample_data import SAMPLES
from ottla.pipeline.jobs.value_parsing import wrong_types


def _said(folder: Path, kind: str, old: str, new: str) -> list[str]:
    text = sample_declaration(kind)
    assert old in text
    (folder / "x.toml").write_text(text.replace(old, new))
    with pytest.raises(DeclarationError) as raised:
        read_job(folder / "x.toml")
    return [str(each.mistake.where) + ": " + each.mistake.message for each in raised.value.located]


@pytest.mark.parametrize("kind", sample_kinds())
def test_the_sample_of_each_kind_is_well_declared(kind: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(sample_declaration(kind))
    assert read_job(tmp_path / "x.toml").kind == kind


@pytest.mark.parametrize("kind", kinds())
def test_each_kind_says_what_it_does(kind: str) -> None:
    assert about(kind)
    assert job_class(kind).model_fields["kind"].annotation is not str


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"nginx"', '"json"', "parse.fields: json needs them"),
        (
            '"nginx"',
            '"json"\nfields._Broken = "STRING"',
            "parse.fields._Broken: '_Broken' is reserved: parsing",
        ),
        ('"127.0.0.1:9092"', '"127.0.0.1:x"', "source.bootstrap_servers: '127.0.0.1:x' is not an address"),
        ('"127.0.0.1:9092"', '""', "source.bootstrap_servers: bootstrap_servers names no broker"),
        (
            'topic = "access-logs-dead"',
            'topic = "a"\nbootstrap_servers = ":1"',
            "dead_letters.bootstrap_servers: ",
        ),
        ('"nginx"', '"regex"', "parse.pattern: is missing"),
        ('"nginx"', "\"regex\"\npattern = '('", "parse.pattern: is not a regular expression"),
        (
            '"nginx"',
            '"nginx"\nfields.statsu = "INT"',
            "parse.fields.statsu: the pattern has no group 'statsu'",
        ),
        ('"nginx"', '"nginx"\nfields.status = "NUMBER"', "parse.fields.status: 'NUMBER' is not a type"),
        ('"nginx"', '"apache"\npattern = "%h %Z"', "parse.pattern: %Z is not supported"),
        ('"access-logs-dead"', '"dead"\ndelivery = "sometimes"', "dead_letters.delivery: must be one of"),
        (
            '"access-logs-dead"',
            '"dead"\noptions.tpoic = 1',
            "dead_letters.options: there is no option 'tpoic'",
        ),
        ('["access-logs"]', '["a"]\nstarting_offsets = "soon"', "source.starting_offsets: "),
        ('"lake/access-logs"', '""', "lake.path: must not be empty"),
        ('"nginx"', '"json"\nfields.batch = "INT"', "parse.fields.batch: 'batch' is reserved: in Parquet"),
        (
            '"nginx"',
            '"json"\nfields._Offset = "INT"',
            "parse.fields._Offset: '_Offset' is reserved: the pipe",
        ),
        ('"nginx"', '"json"\nfields.Day = "INT"', "parse.fields.Day: 'Day' is reserved: the pipeline writes"),
        (
            '"nginx"',
            '"json"\nfields.a = "INT"\nfields.A = "INT"',
            "parse.fields.A: 'A' is reserved: there is already 'a'",
        ),
        ('"nginx"', "\"regex\"\npattern = '(?<Batch>.*)'", "parse: 'Batch' is reserved: in Parquet it names"),
    ],
)
def test_logs(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = _said(tmp_path, "logs", old, new)
    assert any(said in each for each in found), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('user = "user"', 'user = "usr"', "events.user: there is no column 'usr'; the columns are id, user"),
        ('time = "time"', 'time = "action"', "events.time: 'action' must be a TIMESTAMP"),
        ('by = ["action"]', 'by = ["page"]', "windows.by: there is no column 'page'"),
        ('by = ["action"]', 'by = ["Users"]', "windows.by: 'Users' is reserved: the pipeline writes"),
        ('by = ["action"]', 'by = ["_id"]', "windows.by: '_id' is reserved: the pipeline writes"),
        (
            'lake.path = "lake/sessions"',
            'lake.path = "x"\nlake.partition_by = ["day"]',
            "sessions.lake.partition_by: there is no column 'day'; the columns are user, began, ended",
        ),
        (
            'lake.path = "lake/actions"',
            'lake.path = "x"\nlake.partition_by = ["user"]',
            "windows.lake.partition_by: there is no column 'user'; the columns are began, ended, events",
        ),
        ('length = "5m"', 'length = "5m"\nslide = "10m"', "windows.slide: must not be above length"),
        ('late_after = "10m"', "late_after = -1", "events.late_after: must be above 0, not -1"),
    ],
)
def test_activity(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = _said(tmp_path, "activity", old, new)
    assert any(said in each for each in found), found


def test_samples_take_no_topic_of_one_another() -> None:
    taken = re.compile(tomllib.loads(sample_declaration("mirror"))["source"]["pattern"])
    tables = tomllib.loads(sample_declaration("tables"))
    sold = [tables["tables"][0]["topic"], tables["outboxes"][0]["topic"].format(about="orders")]
    names = {kind: sample.topic for kind, sample in SAMPLES.items()}
    assert taken.fullmatch(names.pop("mirror"))
    others = [*sold, *names.values()]
    assert len({*others, "orders"}) == len(others) + 1, "the tutorial has orders"
    assert not any(taken.fullmatch(each) for each in others)


def test_activity_makes_something(tmp_path: Path) -> None:
    text = sample_declaration("activity")
    begin, end = text.index("[sessions]"), text.index("[dead_letters]")
    (tmp_path / "x.toml").write_text(text[:begin] + text[end:])
    with pytest.raises(DeclarationError, match="without them the events have no result"):
        read_job(tmp_path / "x.toml")


@pytest.mark.parametrize(
    "kind", ["STRING", "ARRAY<STRING>", "MAP<STRING, INT>", "STRUCT<a: INT>", "DECIMAL(10, 2)", "decimal(10)"]
)
def test_types(kind: str) -> None:
    assert list(wrong_types({"x": kind})) == []


@pytest.mark.parametrize("kind", ["TEXT", "", "ARRAY<", "ARRAY<ARRAY<INT>", "DECIMAL(x)"])
def test_no_types(kind: str) -> None:
    assert [name for name, _ in wrong_types({"x": kind})] == ["x"]
