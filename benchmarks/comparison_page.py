"""The page that compares with others: runs benchmarks in turn, and writes `docs/reference/measured.md`.

Each part runs in a process of its own within a bound; one that fails or is late is a line of the page, and
the others run all the same. The figures of all rounds go to `measured.json` beside the page, and a few of
them to the first page of the docs. `--only NAME` renews one part and keeps the others; `--render` measures
nothing.

nox -s bench -- page [--quick] [--only NAME ...] [--render]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from comparison import PARTS, Comparison, Measured, Part, merged, render, with_headlines
from figures import FILE_VARIABLE, kept

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DATA = ROOT / "docs" / "reference" / "measured.json"
PAGE = DATA.with_suffix(".md")
FIRST_PAGE = ROOT / "docs" / "index.md"
LIBRARIES = ("aiokafka", "confluent-kafka", "kafka-python", "pyspark", "uvloop")
STREAM_LIBRARIES = ("faust-streaming", "quixstreams", "faststream", "aiokafka", "confluent-kafka")
# How long a part that is late has to stop its brokers.
STOP_S = 30.0


# --- running


def run(part: Part, *, is_quick: bool, peers_python: str) -> Measured:
    """Run a part within its bound; return its figures, or why there are none."""
    command = part.command(is_quick=is_quick)
    extra = ["--peers-python", peers_python] if part.takes_peers and peers_python else []
    load, begun = os.getloadavg()[0], time.monotonic()
    print(f"\n=== {part.title}: {shlex.join(command)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        place = Path(folder, "figures.jsonl")
        bound_s = part.quick_bound_s if is_quick else part.bound_s
        failure = bounded([sys.executable, str(HERE / command[0]), *command[1:], *extra], place, bound_s)
        figures = kept(place)
    if not figures and not failure:
        failure = "printed no figures: what it needs is not on this machine"
    print(f"=== {part.title}: {failure or 'measured'}", flush=True)
    return Measured(
        part.name, datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), commit(), is_quick, round(load, 1),
        round(time.monotonic() - begun), shlex.join(command), failure, tuple(figures),
    )  # fmt: skip


def bounded(command: Sequence[str], place: Path, bound_s: float) -> str:
    """Run a command that keeps its figures at `place`; return why it failed, or "" if it did not.

    One that is late is interrupted, so that it stops its brokers; what is still there after that is killed.
    """
    environment = {**os.environ, FILE_VARIABLE: str(place)}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            code = process.wait(bound_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"did not end within {bound_s:g} s"
        except BaseException:
            _end(process)
            raise
    return f"ended with exit code {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in below:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(below, timeout=1)


# --- what was measured where


def commit() -> str:
    """Return the commit of this tree, with a plus if it has been changed since."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return "unknown"
    asked = [git, "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude", "*"]
    return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout.strip()


def machine() -> dict[str, str]:
    """Describe this machine by what figures depend on."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    names = re.findall(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def versions(peers_python: str) -> dict[str, str]:
    """Return the versions of all that is compared; those of libraries in an environment of their own, too."""
    from peers.maven import KAFKA_3, KAFKA_4
    from stream_apps.confluent import VERSION

    found = {"Python": platform.python_version(), "Java": _java(), "Apache Kafka": f"{KAFKA_4} and {KAFKA_3}"}
    found |= {name: _installed(name) for name in ("ottla-broker", *LIBRARIES)}
    found["Confluent Parallel Consumer"] = VERSION
    if peers_python:
        code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        printed = subprocess.run(
            [peers_python, "-c", code, *STREAM_LIBRARIES],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        beside = dict(zip(STREAM_LIBRARIES, printed, strict=True))
        found |= {
            name if name not in LIBRARIES else f"{name} (below FastStream and Quix)": number
            for name, number in beside.items()
        }
    return found


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _java() -> str:
    if shutil.which("java") is None:
        return "not installed"
    said = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False, timeout=60
    ).stderr
    match = re.search(r'version "([^"]+)"', said)
    return match[1] if match else "unknown"


# --- the program


def load() -> Comparison | None:
    """Read what was measured before, if anything was."""
    return Comparison.from_json(json.loads(DATA.read_text(encoding="utf-8"))) if DATA.exists() else None


def write(comparison: Comparison) -> None:
    """Write the figures, the page, and the table of the first page."""
    DATA.write_text(json.dumps(asdict(comparison), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(render(comparison), encoding="utf-8")
    FIRST_PAGE.write_text(
        with_headlines(FIRST_PAGE.read_text(encoding="utf-8"), comparison), encoding="utf-8"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nox -s bench -- page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of an hour on two cores")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS])
    parser.add_argument("--render", action="store_true", help="write the pages again, without measuring")
    parser.add_argument("--peers-python", default="", help="a Python with faust, Quix Streams and FastStream")
    options = parser.parse_args(arguments)
    if options.render:
        published = load()
        if published is None:
            parser.error(f"there is no {DATA} to render: measure first")
        write(published)
        return 0
    sys.path.insert(0, str(ROOT / "tests"))
    told, numbers = machine(), versions(options.peers_python)
    failed = []
    for part in PARTS:
        if not options.only or part.name in options.only:
            measured = run(part, is_quick=options.quick, peers_python=options.peers_python)
            failed += [measured.name] if measured.failure else []
            # Written after each part, so that a session that is cut off keeps what it has.
            write(merged(load(), Comparison(told, numbers, (measured,))))
    print(f"\n{PAGE} is written." + (f" Not complete: {', '.join(failed)}." if failed else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
