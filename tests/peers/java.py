"""Small Java programs of the tests: compiled once per class path, run with a timeout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path


def compile_program(source: Path, class_path: str) -> Path:
    """Compile one source file; return the folder of its classes, which is cached."""
    digest = hashlib.sha256(source.read_bytes() + class_path.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ottla-java-{os.getuid()}-{digest}"
    if not (folder / f"{source.stem}.class").exists():
        folder.mkdir(exist_ok=True)
        subprocess.run(
            ["javac", "-nowarn", "-cp", class_path, "-d", str(folder), str(source)], check=True, timeout=180
        )
    return folder


def java_command(source: Path, class_path: str, *arguments: str) -> list[str]:
    """Compile a program; return the command that runs it."""
    classes = compile_program(source, class_path)
    return [
        "java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", f"{classes}{os.pathsep}{class_path}", source.stem, *arguments,
    ]  # fmt: skip


def run_program(source: Path, class_path: str, *arguments: str, timeout_s: float = 240) -> str:
    """Compile and run a program; return its output, or raise with it."""
    command = java_command(source, class_path, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise AssertionError(
            f"{source.stem} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}"
        )
    return done.stdout
