"""`--daemon`: run the broker as a process of its own, and wait until it is ready."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

_START_S: Final = 600.0
"""How long to wait: logs that were not closed are checked from their recovery points."""
_NEWS_S: Final = 10.0


class DaemonFailed(RuntimeError):
    """The broker is not ready, or has ended; the message says where to look."""


def start_daemon(log_path: Path, log_dir: Path | None) -> str:
    """Run the same command without `--daemon`, detached; return its line once the broker is ready.

    `log_path` gets its output. Raises DaemonFailed.
    """
    read_end, write_end = os.pipe()
    arguments = [argument for argument in sys.argv[1:] if argument != "--daemon"]
    news_path = log_path if log_dir is None else log_dir / "server.log"
    news_begin = news_path.stat().st_size if news_path.exists() else 0
    with log_path.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla.broker", *_from_start(arguments), "--ready-fd", str(write_end)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            pass_fds=(write_end,), start_new_session=True,
        )  # fmt: skip
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        line = wait_until_ready(pipe.fileno(), lambda: last_words(news_path, news_begin))
    if line is None:
        raise DaemonFailed(
            f"the broker is not ready after {_START_S:.0f} s and goes on starting as process "
            f"{process.pid}: see {log_path}"
        )
    if not line:
        reason = (
            last_words(log_path, begin).removeprefix("Error: ") or f"it ended without a word in {log_path}"
        )
        raise DaemonFailed(f"the broker did not start: {reason}")
    return line


def _from_start(arguments: list[str]) -> list[str]:
    """Return the arguments from `start` on: the `ottla` command has `broker` before it."""
    return arguments[arguments.index("start") :]


def wait_until_ready(
    descriptor: int,
    news: Callable[[], str],
    *,
    news_s: float = _NEWS_S,
    bound_s: float = _START_S,
) -> str | None:
    """Return the line of a broker that is ready, "" of one that has ended, None of one that takes longer.

    A start that takes long is reported on standard error, with the `news` of the broker's log.
    """
    for turn in range(1, 1 + int(bound_s / news_s)):
        ready, _, _ = select.select([descriptor], [], [], news_s)
        if ready:
            return os.read(descriptor, 4096).decode().strip()
        click.echo(f"The broker is starting, for {turn * news_s:.0f} s now. {news()}".strip(), err=True)
    return None


def last_words(log_path: Path, begin: int) -> str:
    """Return the last line of a broker's log behind a position: without those of earlier runs."""
    try:
        with log_path.open("rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""
