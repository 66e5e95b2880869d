"""The Python that Spark starts for its workers, where no virtual environment is activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.snippets import PAGES, PRINTED_SERVERS, ROOT, blocks
from peers.spark import small_driver

OUR_SESSION = """
from ottla.pipeline.spark import spark_session

spark = spark_session("other", {"master": "local[1]"})
found = spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092")
print(found.option("subscribePattern", "no-such-topic").load().count(), "rows")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose first `python3` is another one, which has none of our packages."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f"#!/bin/sh\necho used > '{tmp_path}/used'\nexit 1\n")
    other.chmod(0o755)
    own = Path(sys.executable).parent
    rest = [each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != own]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return kept | {"PATH": os.pathsep.join([str(other.parent), *rest])} | small_driver(tmp_path)


@pytest.mark.parametrize("which", ["the readme's program", "our session"])
def test_a_program_finds_the_format_in_its_own_python(
    which: str, broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    readme = blocks(ROOT / "packages/pipeline/README.md", "needs Spark")[0].code
    program = readme if "readme" in which else OUR_SESSION
    file = tmp_path / "program.py"
    file.write_text(program.replace(PRINTED_SERVERS, broker.bootstrap_servers))

    done = subprocess.run(
        [sys.executable, str(file)], env=environment, cwd=tmp_path,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3_000:]
    assert "good morning" in done.stdout if "readme" in which else done.stdout.endswith("0 rows\n")
    assert not (tmp_path / "used").exists()


def test_every_page_that_starts_spark_says_with_which_python() -> None:
    starting = [
        (page, each.code)
        for page in PAGES
        for mark in ("needs spark", "needs Spark", "needs SparkTransactions")
        for each in blocks(page, mark)
        if "SparkSession.builder" in each.code
    ]
    assert len(starting) >= 5
    for page, code in starting:
        assert 'os.environ["PYSPARK_PYTHON"] = sys.executable' in code, page
