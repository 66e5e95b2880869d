"""`ottla pipeline`, as far as it needs neither broker nor Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from ottla.broker.testing import free_port
from ottla.client.page_server import Page
from ottla.pipeline.cli import _served, pipeline
from ottla.pipeline.jobs.run import stop_on_signals
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.state_files import StateFile

OTTLA = "from ottla.client.cli import main; main()"


def _call(*words: str) -> Result:
    return CliRunner().invoke(pipeline, list(words))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A declaration."""
    (tmp_path / "logs.toml").write_text(sample_declaration("logs", "there:1"))
    return tmp_path / "logs.toml"


def test_a_sample_is_well_declared(logs: Path) -> None:
    assert "there:1" in logs.read_text()
    done = _call("check", str(logs))
    assert (done.exit_code, done.output) == (0, f"{logs}: access-logs (logs) is valid\n")
    done = _call("sample", "logs", "--declaration", "-b", "there:1")
    assert done.output == logs.read_text()


def test_all_that_is_wrong_is_said(logs: Path) -> None:
    wrong = logs.with_name("wrong.toml")
    wrong.write_text(logs.read_text().replace('"hour"', '"huor"').replace('"status"', '"staus"'))
    done = _call("check", str(logs), str(wrong))
    assert done.exit_code == 2
    said = done.output.splitlines()
    assert said[1].startswith(f"{wrong}: line 13: parse.required: there is no column 'staus'")
    assert said[2].startswith(f"{wrong}: line 17: lake.partition_by: there is no column 'huor'")
    assert said[3] == "2 mistakes"
    done = _call("run", str(wrong))
    assert done.exit_code == 2, "it does not begin"
    assert "line 17" in done.output


def test_kinds_are_listed() -> None:
    done = _call("list", "--json")
    assert done.exit_code == 0, done.output
    listed = {each["kind"]: each["what_it_does"] for each in json.loads(done.output)}
    assert {"logs", "activity"} <= listed.keys()
    assert all(listed.values())


def test_declarations_of_a_folder_are_listed(logs: Path) -> None:
    logs.with_name("wrong.toml").write_text('kind = "lgos"\n')
    logs.with_name("other.toml").write_text("[project]\nname = 1\n")
    done = _call("list", str(logs.parent), "--json")
    assert [(each["name"], each["state"]) for each in json.loads(done.output)] == [
        ("access-logs", "never run"),
        ("wrong", "invalid: line 1"),
    ]


def test_a_file_that_is_not_utf8_is_wrong_and_the_others_are_looked_at(logs: Path) -> None:
    latin = logs.with_name("latin.toml")
    latin.write_bytes('kind = "logs"\nname = "Führung"\n'.encode("latin-1"))
    logs.with_name("notes.py").write_bytes("# Führung\n".encode("latin-1"))
    done = _call("check", str(latin), str(logs))
    assert done.exit_code == 2, done.output
    said = done.output.splitlines()
    assert said[0].startswith(f"{latin} cannot be read: 'utf-8' codec")
    assert said[1:] == [f"{logs}: access-logs (logs) is valid", "1 mistake"]
    done = _call("list", str(logs.parent), "--json")
    assert done.exit_code == 0, done.output
    listed = {each["name"]: each["state"] for each in json.loads(done.output)}
    assert listed.keys() == {"latin", "access-logs"}, "what declares nothing may be written in any way"
    assert listed["latin"].startswith(f"invalid: {latin} cannot be read")


def test_a_damaged_status_is_said_in_a_line(logs: Path) -> None:
    file = logs.parent / "state/access-logs/status.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    done = _call("status", str(logs))
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {file} is damaged")
    listed = json.loads(_call("list", str(logs), "--json").output)
    assert listed[0]["state"].startswith(f"invalid: {file} is damaged")


def test_status(logs: Path) -> None:
    assert _call("status", str(logs)).output.startswith("access-logs (logs) never run\n")
    file = StateFile(logs.parent / "state/access-logs/status.json")
    file.write({"state": "failed", "error": "no broker", "updated_s": 1, "queries": {}})
    assert _call("status", str(logs)).output.startswith("access-logs (logs) failed: no broker\n")
    file.write({"state": "running", "updated_s": 1, "queries": {}})
    assert json.loads(_call("status", str(logs), "--json").output)["state"] == "killed"


def test_there_is_no_sample_of_what_there_is_not() -> None:
    done = _call("sample", "lgos", "--declaration")
    assert done.exit_code == 2
    assert "did you mean logs?" in done.output


def test_a_broker_that_is_not_there_is_no_usage_error() -> None:
    done = _call("sample", "logs", "--count", "1", "-b", f"127.0.0.1:{free_port()}")
    assert done.exit_code == 1, done.output
    assert done.output.startswith("Error: ")
    assert done.output.count("\n") == 1
    assert "Usage:" not in done.output


def test_watching_ends_in_silence(logs: Path) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-c", OTTLA, "pipeline", "status", str(logs), "--watch"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    try:
        assert watching.stdout.readline() == "access-logs (logs) never run\n"
        watching.send_signal(signal.SIGINT)
        said, wrong = watching.communicate(timeout=60)
    finally:
        watching.kill()
    assert (watching.returncode, wrong) == (0, "")
    assert "Aborted" not in said


def test_a_signal_asks_to_stop_and_a_second_one_insists() -> None:
    stopping = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(stopping):
        signal.raise_signal(signal.SIGTERM)
        assert stopping.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_pages_of_a_run_are_served_while_it_runs() -> None:
    port = free_port()
    with (
        _served(lambda path: Page(path.encode()), f"127.0.0.1:{port}", None, None, is_open=False),
        urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer,
    ):
        assert answer.read() == b"/status"
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.1:{port}/status", timeout=30)


def test_pages_that_other_machines_reach_need_a_login(logs: Path) -> None:
    done = _call("run", str(logs), "--status", "0.0.0.0:9466")

    assert done.exit_code == 2
    assert "they need TLS and a token" in done.output
