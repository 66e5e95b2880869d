"""Declaration files as jobs, and the errors of invalid files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs import declaration_files
from ottla.pipeline.jobs.declaration import Job, Mistake, PathOrUrl, Seconds, Table, Topics
from ottla.pipeline.jobs.declaration_errors import DeclarationError
from ottla.pipeline.jobs.declaration_files import declares, read_job
from ottla.pipeline.source.config import SourceConfig


class Rule(Table):
    limit: float = Field(gt=0)
    note: str | None = None


class Toy(Job):
    """A job of tests."""

    kind: Literal["toy"]
    source: Topics
    out: PathOrUrl = Field(examples=["lake/toys"])
    delay: Seconds = 1.0
    rules: list[Rule] = Field(default_factory=list)

    def inspect(self) -> Iterator[Mistake]:
        for found in self.source.inspect():
            yield Mistake(("source", *found.path), found.message)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(declaration_files._OURS, "toy", f"{__name__}:Toy")
    monkeypatch.setattr(declaration_files, "import_module", lambda name: SimpleNamespace(Toy=Toy))


GOOD = """
kind = "toy"
name = "toys"
checkpoint = "state/toys"
trigger = "250ms"
out = "s3://lake/toys"
spark.sql.shuffle.partitions = 2

[source]
bootstrap_servers = "127.0.0.1:9092"
topics = "a, b"
max_records_per_batch = 10
options.kafka.security.protocol = "PLAINTEXT"

[[rules]]
limit = 2
"""


def _read(folder: Path, text: str, name: str = "toy.toml") -> Job:
    file = folder / name
    file.write_text(text)
    return read_job(file)


def _mistakes(folder: Path, text: str, name: str = "toy.toml") -> list[str]:
    with pytest.raises(DeclarationError) as raised:
        _read(folder, text, name)
    return [str(each) for each in raised.value.located]


def test_a_declaration(tmp_path: Path) -> None:
    job = _read(tmp_path, GOOD)
    assert isinstance(job, Toy)
    assert job.checkpoint == str(tmp_path / "state/toys"), "relative to the file, not to where one stands"
    assert job.out == "s3://lake/toys", "an address stays"
    assert job.trigger == 0.25
    assert job.spark == {"sql.shuffle.partitions": 2}, "dotted names need no quotes"
    assert job.source.stream_options() == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "subscribe": "a,b",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "10",
        "kafka.security.protocol": "PLAINTEXT",
    }
    assert job.source.properties() == {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "toy"', 'kind = "tyo"', "line 2: kind: there is no kind 'tyo'; did you mean toy?"),
        ('name = "toys"\n', "", 'line 1: name: is missing: name = "access-logs"'),
        ('out = "s3://lake/toys"', "", 'line 1: out: is missing: out = "lake/toys"'),
        ("topics =", "topcs =", "line 11: source.topcs: there is no such setting; did you mean topics?"),
        ('"250ms"', '"soon"', "line 5: trigger: must be a time such as 200ms, 10s, 5m, 1h or 2d, not 'soon'"),
        ('"250ms"', "0", "line 5: trigger: must be above 0, not 0"),
        ("= 10\n", '= "10"\n', "line 12: source.max_records_per_batch: must be a whole number, not '10'"),
        ("limit = 2", "limit = -2", "line 16: rules[0].limit: must be above 0, not -2"),
        ("limit = 2", 'note = "x"', "line 15: rules[0].limit: is missing"),
        (
            "limit = 2",
            "limit = 2\nlimt = 3",
            "line 17: rules[0].limt: there is no such setting; did you mean",
        ),
        ("\n[source]", "source = 3\n[other]", "line 8: source: must be a table, not 3"),
        (
            'topics = "a, b"',
            'pattern = "a)|(b"',
            "line 11: source.pattern: is not a regular expression: unbalanced",
        ),
        ('"a, b"', '"a, b?"', "line 11: source.topics[1]: 'b?' has characters other than ASCII letters"),
        ('name = "toys"', 'name = "my toys"', "line 3: name: must be letters, digits, '.', '_' and '-'"),
        ('topics = "a, b"', 'pattern = ""', "line 11: source.pattern: must not be empty"),
        ('"a, b"', '""', 'line 11: source.topics: needs topics = ["orders"] or a pattern, but not both'),
        ("kafka.security.protocol", "failOnDatLoss", "did you mean 'failOnDataLoss'?"),
        ("limit = 2", "limit = = 2", "line 16: the file is not TOML"),
    ],
)
def test_mistakes_are_said_with_their_lines(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    found = _mistakes(tmp_path, GOOD.replace(old, new))
    assert any(said in each for each in found), found


def test_all_mistakes_are_said_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = GOOD.replace('"250ms"', "-1").replace("topics", "topcs").replace("limit = 2", 'limit = "x"')
    found = _mistakes(tmp_path, text)
    assert [each.split(":")[0] for each in found] == ["line 5", "line 11", "line 16"]


def test_python_declares_a_dict(tmp_path: Path) -> None:
    text = """
where = "127.0.0.1:9092"
pipeline = {
    "kind": "toy", "name": "toys",
    "checkpoint": "state",
    "out": "o",
    "source": {"bootstrap_servers": where, "topics": ["a"]},
    "rules": [{"limit": LIMIT}],
}
"""
    job = _read(tmp_path, text.replace("LIMIT", "5"), "toy.py")
    assert isinstance(job, Toy)
    assert job.rules[0].limit == 5
    assert job.checkpoint == str(tmp_path / "state")
    said = _mistakes(tmp_path, text.replace("LIMIT", "-5"), "toy.py")
    assert said == ["line 8: rules[0].limit: must be above 0, not -5"]


OWN = """
from typing import Literal
from ottla.pipeline.jobs.declaration import Job

class Own(Job):
    "Mine."
    kind: Literal["own"] = "own"
    size: int = 1

pipeline = Own(
    name="mine",
    checkpoint="state",
    size=SIZE,
)
"""


def test_python_declares_a_job_of_its_own(tmp_path: Path) -> None:
    job = _read(tmp_path, OWN.replace("SIZE", "3"), "own.py")
    assert (job.kind, job.name) == ("own", "mine")
    assert job.checkpoint == str(tmp_path / "state")
    assert _mistakes(tmp_path, OWN.replace("SIZE", '"x"'), "own.py") == [
        "line 13: size: must be a whole number, not 'x'"
    ]


def test_python_that_fails_is_said_with_its_line(tmp_path: Path) -> None:
    assert _mistakes(tmp_path, "x = 1\npipeline = {'kind': 1 / 0}\n", "bad.py") == [
        "line 2: ZeroDivisionError: division by zero"
    ]
    assert _mistakes(tmp_path, "x = (\n", "bad.py")[0].startswith("line 1: the file is not Python: ")
    assert _mistakes(tmp_path, "x = 1\n", "bad.py") == ["line 1: the file has to contain pipeline = {...}"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert _mistakes(tmp_path, "", "job.yaml") == [
        "line 1: a pipeline has to be declared in a .toml or a .py file"
    ]
    with pytest.raises(PipelineError, match="cannot be read"):
        read_job(tmp_path / "none.toml")


def test_which_files_declare(tmp_path: Path) -> None:
    def declared(name: str, text: str) -> bool:
        (tmp_path / name).write_text(text)
        return declares(tmp_path / name)

    assert declared("a.toml", GOOD)
    assert not declared("b.toml", "[project]\nname = 1\n")
    assert declared("c.py", OWN)
    assert not declared("d.py", "import sys\n")


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("logs-.*", {"logs-a"}),
        ("logs-a|old", {"logs-a", "old"}),
        ("(?i)LOGS-.|OLD", {"logs-a", "old"}),
        ("logs", set()),
    ],
)
def test_a_pattern_has_to_match_whole_names(pattern: str, topics: set[str]) -> None:
    found = Topics.model_validate({"bootstrap_servers": "there:1", "pattern": pattern})
    assert list(found.inspect()) == []
    wanted = SourceConfig.of(found.stream_options(), streaming=True).wanted
    assert {name for name in ("logs-a", "my-logs-a", "old", "older") if wanted.matches(name)} == topics
