"""Confluent's Parallel Consumer, from Maven: the class path of the Java programs beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from peers.java import compile_program
from peers.maven import classpath

HERE = Path(__file__).resolve().parent
VERSION = "0.5.3.2"
# With its dependencies: without those of pl.tlinkowski.unij it stands still and says nothing.
# Its client is the one that it was built with, because it reads a private field that newer ones do not have.
_JARS = (f"io.confluent.parallelconsumer:parallel-consumer-core:{VERSION}", "org.slf4j:slf4j-simple:2.0.13")
HEAP = "512m"


def java_command(program: str, *arguments: str) -> list[str]:
    """Compile a program of this folder if it changed; return the command that runs it."""
    jars = classpath(*_JARS)
    classes = compile_program(HERE / f"{program}.java", jars)
    return [
        "java", f"-Xmx{HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", f"{classes}{os.pathsep}{jars}", program, *arguments,
    ]  # fmt: skip
