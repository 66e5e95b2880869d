"""Build, repair and try wheels of all packages for each CPython of this machine: `nox -s wheels`.

    python .ci/wheels.py [--no-limits] [PYTHON...]

Wheels are built with one interpreter of each version, and tried with each interpreter: in an empty
environment it installs them, starts a broker, sends a line and reads it. Both have limits of time, which
`--no-limits` only prints.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist" / "wheels"
BUILD_TOOLS: Final = ("hatchling>=1.26", "setuptools>=77", "cython>=3.1,<4")
INSTALL_LIMIT_S: Final = 15.0
MESSAGE_LIMIT_S: Final = 20.0
"""From the empty environment to the first message that was read."""
LOOK: Final = (
    "import sys, sysconfig; print(sys.implementation.name, *sys.version_info[:2], "
    "sys.prefix == sys.base_prefix, sys.base_prefix.replace(' ', '?'), "
    "sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
)


@dataclass(frozen=True)
class Interpreter:
    """A CPython that wheels are for."""

    path: Path
    tag: str
    """`cp313`"""


def main() -> None:
    """Build, repair, list, try."""
    parser = argparse.ArgumentParser(description="Build, repair and try wheels.")
    parser.add_argument(
        "pythons", nargs="*", type=Path, help="interpreters; without any, those of this machine"
    )
    parser.add_argument("--no-limits", action="store_true", help="only print how long installing takes")
    given = parser.parse_args()
    interpreters = list(known(given.pythons or candidates()))
    if not interpreters:
        sys.exit("no CPython 3.11 or later was found: name one")
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for interpreter in {interpreter.tag: interpreter for interpreter in interpreters}.values():
            build(interpreter, Path(folder), DIST, packages())
    show_sizes()
    late = [line for interpreter in interpreters for line in attempt(interpreter)]
    if late and not given.no_limits:
        sys.exit("\n".join(late))


def candidates() -> Iterator[Path]:
    """Yield programs that may be interpreters of Python."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"]
    pyenv = Path.home() / ".pyenv" / "versions"
    yield from sorted(pyenv.glob("*/bin/python3"))
    for folder in dict.fromkeys(folders):
        yield from sorted(Path(folder).glob("python3.[0-9]*"))


def known(paths: Sequence[Path] | Iterator[Path]) -> Iterator[Interpreter]:
    """Yield each CPython 3.11 or later once; an environment stands for its interpreter, and is left out."""
    seen = set()
    for path in paths:
        if not re.fullmatch(r"python3(\.\d+)?", path.name):
            continue
        done = subprocess.run([path, "-c", LOOK], capture_output=True, text=True, check=False)
        match done.stdout.split():
            case ["cpython", "3", minor, "True", prefix, "0"] if int(minor) >= 11 and prefix not in seen:
                seen.add(prefix)
                yield Interpreter(path, f"cp3{minor}")


def build(interpreter: Interpreter, folder: Path, dist: Path, names: Sequence[str]) -> None:
    """Build wheels of packages for a version of Python, and repair those that have compiled modules."""
    python = environment(interpreter, folder / f"build-{interpreter.tag}")
    run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *BUILD_TOOLS)
    built = folder / interpreter.tag
    run(python, str(ROOT / "packages" / "clone_wheels.py"), "--release", str(built), *names)
    dist.mkdir(parents=True, exist_ok=True)
    repair = ("-m", "auditwheel", "repair", "--strip", "-w", str(dist))
    for wheel in sorted(built.glob("*.whl")):
        if wheel.stem.endswith("-any") or sys.platform != "linux":
            shutil.move(wheel, dist / wheel.name)
        else:
            run(Path(sys.executable), *repair, str(wheel))


def packages() -> list[str]:
    """Name the packages of this tree."""
    return sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml"))


def environment(interpreter: Interpreter, folder: Path) -> Path:
    """Make an environment that has pip alone; return its Python."""
    uv = shutil.which("uv")
    if uv is not None:  # Debian's Python has no ensurepip, which venv needs
        subprocess.run([uv, "venv", "-q", "--seed", "-p", interpreter.path, folder], check=True)
    else:
        run(interpreter.path, "-m", "venv", str(folder))
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def run(python: Path, *arguments: str) -> None:
    """Run a Python with nothing of this session on its path."""
    subprocess.run([python, *arguments], check=True, env=clean_environment())


def clean_environment() -> dict[str, str]:
    """Return the environment of a user who has just unpacked Python."""
    left_out = ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def show_sizes() -> None:
    """Print what each wheel weighs, packed and unpacked."""
    for wheel in sorted(DIST.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        print(
            f"{wheel.name:100} {wheel.stat().st_size / 1e6:6.2f} MB packed {unpacked / 1e6:6.2f} MB unpacked"
        )


def attempt(interpreter: Interpreter) -> list[str]:
    """Install the wheels of `ottla` in an empty environment, send a line, read it; return what was late."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(interpreter, Path(folder, "env"))
        begun_s, begun_cpu_s = time.monotonic(), cpu_s()
        run(python, "-m", "pip", "install", "-q", *map(str, wheels_for(interpreter)))
        installed_s, installed_cpu_s = time.monotonic() - begun_s, cpu_s() - begun_cpu_s
        send_and_read(python.parent, Path(folder))
        read_s = time.monotonic() - begun_s
        installed = sum(path.stat().st_size for path in Path(folder, "env").rglob("*") if path.is_file())
        ours = sum(
            path.stat().st_size for path in Path(folder, "env").rglob("**/ottla/**/*") if path.is_file()
        )
    name = f"{interpreter.tag} ({interpreter.path})"
    print(
        f"{name}: installed in {installed_s:.1f} s ({installed_cpu_s:.1f} s of CPU), first message after "
        f"{read_s:.1f} s; the environment has {installed / 1e6:.0f} MB with pip, ottla of them "
        f"{ours / 1e6:.0f} MB",
        flush=True,
    )
    late = [(installed_s, INSTALL_LIMIT_S, "installing"), (read_s, MESSAGE_LIMIT_S, "the first message")]
    return [
        f"{name}: {what} took {took:.1f} s, not {limit:.0f}" for took, limit, what in late if took > limit
    ]


def cpu_s() -> float:
    """Return the processor time of the processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


def wheels_for(interpreter: Interpreter) -> list[Path]:
    """Return the wheels of `ottla` and of all that it needs of this tree, for one version of Python."""
    sys.path.insert(0, str(ROOT / "packages"))
    from clone_wheels import common_set

    wanted = {name.replace("-", "_") for name in common_set("ottla")}
    fitting = [wheel for wheel in sorted(DIST.glob("*.whl")) if wheel.name.split("-")[0] in wanted]
    return [wheel for wheel in fitting if wheel.name.split("-")[2] in ("py3", interpreter.tag)]


def send_and_read(programs: Path, folder: Path) -> None:
    """Start a broker, send a line and read it, with the commands of README."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{free.getsockname()[1]}"
    environment = clean_environment() | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OTTLA_BOOTSTRAP_SERVER": servers,
    }  # fmt: skip
    start = ["ottla", "broker", "start", "--data-dir", "data", "--listen", servers, "--daemon"]
    ends = ["ottla", "broker", "stop", "--data-dir", "data"]
    read = ["ottla", "consume", "letters", "--from-beginning", "--max-messages", "1"]
    subprocess.run(start, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run(
            ["ottla", "produce", "letters"],
            input="hello\n", text=True, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        printed = subprocess.run(
            read, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=60
        )
        if printed.stdout != "hello\n":
            sys.exit(f"the broker answered {printed.stdout!r}, not hello")
    finally:
        subprocess.run(ends, cwd=folder, env=environment, check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
