"""A file per logger, rotated, in the format of the lines on standard error."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.broker.runtime.log_lines import LogFiles, set_up_logging

TIMEOUT_S = 60.0
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (\w+) +([\w.-]+): (.+)")


@pytest.fixture
def loggers() -> Iterator[None]:
    """Leave the process's loggers as they were."""
    named = [
        logging.getLogger(name) for name in (None, "request", "controller", "state-change", "log-cleaner")
    ]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in named]
    yield
    for logger, handlers, level, propagate in before:
        for handler in set(logger.handlers) - set(handlers):
            with suppress(OSError):  # a full one
                handler.close()
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def lines_of(path: Path) -> list[tuple[str, ...]]:
    found = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
    return [match.groups() for match in found if match is not None]


def test_each_logger_has_its_file_and_all_others_are_in_the_servers(tmp_path: Path, loggers: None) -> None:
    set_up_logging("info", LogFiles(tmp_path))

    for name in ("request", "authorizer", "controller", "state-change", "log-cleaner", "ottla.broker.log"):
        logging.getLogger(name).info("an event", extra={"of": name})
        logging.getLogger(name).debug("below the level")

    assert {path.name: lines_of(path) for path in tmp_path.iterdir()} == {
        "kafka-request.log": [("INFO", "request", "an event of=request")],
        "kafka-authorizer.log": [("INFO", "authorizer", "an event of=authorizer")],
        "controller.log": [("INFO", "controller", "an event of=controller")],
        "state-change.log": [("INFO", "state-change", "an event of=state-change")],
        "log-cleaner.log": [("INFO", "log-cleaner", "an event of=log-cleaner")],
        "server.log": [("INFO", "ottla.broker.log", "an event of=ottla.broker.log")],
    }


def test_a_file_is_rotated_by_its_size_and_the_oldest_ones_are_deleted(tmp_path: Path, loggers: None) -> None:
    set_up_logging("info", LogFiles(tmp_path, max_bytes=200, most_files=3))

    for number in range(40):
        logging.getLogger("controller").info("an event", extra={"number": number})

    files = sorted(path.name for path in tmp_path.glob("controller.log*"))
    assert files == ["controller.log", "controller.log.1", "controller.log.2"]
    assert all(0 < (tmp_path / name).stat().st_size <= 200 for name in files)
    assert "number=39" in (tmp_path / "controller.log").read_text()


def test_lines_that_a_file_does_not_take_are_on_standard_error(
    tmp_path: Path, loggers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "controller.log").symlink_to("/dev/full")
    set_up_logging("info", LogFiles(tmp_path))

    logging.getLogger("controller").info("an event", extra={"number": 7})

    assert capsys.readouterr().err.count("an event number=7") == 1


def test_a_broker_with_log_dir_writes_its_files_there_from_info_on(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "ottla.broker", "start", "--listen", "127.0.0.1:0",
        "--data-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs"),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "is ready on" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr.read() == ""

    assert any("elected controller" in text for _, _, text in lines_of(tmp_path / "logs" / "controller.log"))
    assert any(text.startswith("registered") for _, _, text in lines_of(tmp_path / "logs" / "server.log"))


def test_a_log_dir_that_cannot_be_made_refuses_the_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "ottla.broker", "start", "--log-dir", str(tmp_path / "file" / "logs")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path
    )

    assert done.returncode == 1
    assert done.stderr == f"Error: --log-dir {tmp_path / 'file' / 'logs'}: Not a directory\n"


def test_a_daemons_log_dir_is_where_the_command_was_called(tmp_path: Path) -> None:
    begin = [sys.executable, "-m", "ottla.broker"]
    data = ["--data-dir", str(tmp_path / "data")]
    subprocess.run(
        [*begin, "start", "--listen", "127.0.0.1:0", *data, "--log-dir", "logs", "--daemon"],
        cwd=tmp_path, timeout=TIMEOUT_S, check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run([*begin, "stop", *data], timeout=TIMEOUT_S, check=True, capture_output=True)

    assert (tmp_path / "logs" / "server.log").exists()
