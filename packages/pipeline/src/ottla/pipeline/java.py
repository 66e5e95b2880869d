"""The Java that Spark runs on: find it by JAVA_HOME or PATH, or advise what to install."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla.pipeline.errors import PipelineError

LEAST = 17
_VERSION = re.compile(r'version "(\d+)')
_NEEDED = "jdk.incubator.vector"
"""A module that Spark needs at its start; a reduced Java may not have it."""

_COMMANDS = {
    "debian": "sudo apt install default-jre-headless",
    "fedora": "sudo dnf install java-21-openjdk-headless",
    "rhel": "sudo dnf install java-21-openjdk-headless",
    "suse": "sudo zypper install java-21-openjdk-headless",
    "arch": "sudo pacman -S jre21-openjdk-headless",
    "alpine": "sudo apk add openjdk21-jre-headless",
    "Darwin": "brew install openjdk@21",
    "Windows": "winget install EclipseAdoptium.Temurin.21.JRE",
}


class NoJava(PipelineError):
    """There is no Java that Spark can run on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: its program and its version."""

    program: Path
    version: int

    @property
    def home(self) -> Path:
        """The folder for JAVA_HOME."""
        return self.program.resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Tried:
    """A program that was tried, and its answer."""

    program: Path
    version: int | None
    """None: the program failed, or lacks a required module."""


def find_java(
    environment: Mapping[str, str] | None = None, ask: Callable[[Path], int | None] | None = None
) -> Java:
    """Return the first Java of JAVA_HOME and PATH that is new enough. Raises NoJava with install advice."""
    tried = []
    for program in _programs(os.environ if environment is None else environment):
        version = (ask or version_of)(program)
        if version is not None and version >= LEAST:
            return Java(program, version)
        tried.append(Tried(program, version))
    raise NoJava(_advice(tried))


def _programs(environment: Mapping[str, str]) -> Iterator[Path]:
    name = "java.exe" if os.name == "nt" else "java"
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", name)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)


def version_of(program: Path) -> int | None:
    """Return the version of a Java; None if it fails or lacks a module that Spark needs."""
    try:
        done = subprocess.run(
            [program, f"--add-modules={_NEEDED}", "-version"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        if done.returncode:  # Java 8 does not know the option: ask only for its version
            done = subprocess.run(
                [program, "-version"], capture_output=True, text=True, timeout=30, check=True
            )
            found = _VERSION.search(done.stderr)
            return int(found[1]) if found and int(found[1]) < LEAST else None
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr)
    return int(found[1]) if found else None


def _advice(tried: list[Tried]) -> str:
    said = "; ".join(f"{each.program} {_why(each)}" for each in tried) or "none was found"
    install = install_command(platform.system(), _distribution())
    return f"Spark needs Java {LEAST} or newer ({said}): {install}, or set JAVA_HOME to one"


def _why(tried: Tried) -> str:
    if tried.version is None and not tried.program.exists():
        return "cannot be run: there is no such file"
    if tried.version is None:
        return f"cannot be run or has no {_NEEDED}"
    return f"is Java {tried.version}"


def install_command(system: str, distribution: tuple[str, ...]) -> str:
    """Return the command that installs a Java, for a system and the names of a distribution."""
    for name in (*distribution, system):
        if name in _COMMANDS:
            return _COMMANDS[name]
    return "install OpenJDK 21 from https://adoptium.net"


def _distribution() -> tuple[str, ...]:
    """Return the names of this Linux distribution and of those it is based on."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    return (release.get("ID", ""), *release.get("ID_LIKE", "").split())
