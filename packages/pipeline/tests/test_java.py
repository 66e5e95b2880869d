"""Finding a Java for Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.pipeline.spark import NoJava, find_java, install_command, settings_for, version_of


def _java(folder: Path) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = _java(tmp_path / "home"), _java(tmp_path / "path")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}, lambda program: 21)
    assert found.program == home
    assert found.home == tmp_path / "home"


@pytest.mark.parametrize("at_home", [None, 11])
def test_path_is_tried_where_java_home_will_not_do(tmp_path: Path, at_home: int | None) -> None:
    home, other = _java(tmp_path / "home"), _java(tmp_path / "path")
    found = find_java(
        {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)},
        lambda program: at_home if program == home else 17,
    )
    assert (found.program, found.version) == (other, 17)


def test_without_a_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=r"needs Java 17 or newer \(none was found\): .+") as raised:
        find_java({"PATH": str(tmp_path)})
    assert "\n" not in str(raised.value)


def test_an_old_java_is_named(tmp_path: Path) -> None:
    old = _java(tmp_path / "old")
    with pytest.raises(NoJava, match="is Java 11"):
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, lambda program: 11)
    with pytest.raises(NoJava, match=f"{old} cannot be run or has no jdk.incubator.vector"):
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, lambda program: None)


def test_a_java_home_without_a_java_is_told_from_one_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=r"bin/java(\.exe)? cannot be run: there is no such file\)"):
        find_java({"JAVA_HOME": str(tmp_path / "typo"), "PATH": ""})


@pytest.mark.parametrize(
    ("system", "distribution", "said"),
    [
        ("Linux", ("ubuntu", "debian"), "apt install"),
        ("Linux", ("rocky", "rhel", "centos", "fedora"), "dnf install"),
        ("Linux", ("opensuse-leap", "suse"), "zypper install"),
        ("Linux", ("arch",), "pacman"),
        ("Linux", ("alpine",), "apk add"),
        ("Darwin", (), "brew install"),
        ("Windows", (), "winget install"),
        ("Plan9", (), "adoptium.net"),
    ],
)
def test_the_command_is_that_of_the_platform(system: str, distribution: tuple[str, ...], said: str) -> None:
    assert said in install_command(system, distribution)


PRINTS = """#!/bin/sh
case "$1" in --add-modules=*) test -z "$LACKS" || exit 1;; esac
echo 'openjdk version "{version}" 2024-01-01' >&2
"""


@pytest.mark.skipif(os.name == "nt", reason="the program is a shell script")
@pytest.mark.parametrize(
    ("version", "lacks", "found"), [("21.0.2", "", 21), ("1.8.0_392", "1", 1), ("25", "1", None)]
)
def test_a_java_is_asked(
    tmp_path: Path, version: str, lacks: str, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACKS", lacks)
    program = _java(tmp_path)
    program.write_text(PRINTS.format(version=version))
    assert version_of(program) == found
    assert version_of(tmp_path / "none") is None


def test_settings_of_the_user_win() -> None:
    found = settings_for(
        {"master": "local[3]", "sql.shuffle.partitions": 7, "ui.enabled": True}, has_master=False
    )
    assert found["spark.master"] == "local[3]"
    assert found["spark.sql.shuffle.partitions"] == "7"
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.host"] == "127.0.0.1"


def test_stopping_a_query_is_bounded_unless_the_user_says_otherwise() -> None:
    assert settings_for({}, has_master=False)["spark.sql.streaming.stopTimeout"] == "60s"
    found = settings_for({"sql.streaming.stopTimeout": "5m"}, has_master=False)
    assert found["spark.sql.streaming.stopTimeout"] == "5m"


def test_on_a_cluster_nothing_is_assumed_about_it() -> None:
    found = settings_for({"master": "spark://there:7077"}, has_master=False)
    assert "spark.driver.host" not in found
    assert "spark.sql.shuffle.partitions" not in found
    assert "spark.master" not in settings_for({}, has_master=True)


def test_options_for_java_are_kept() -> None:
    found = settings_for({"driver.extraJavaOptions": "-Xmx1g"}, has_master=False)
    assert found["spark.driver.extraJavaOptions"].endswith("-Xmx1g")
    assert "log4j2.configurationFile=file:" in found["spark.driver.extraJavaOptions"]
