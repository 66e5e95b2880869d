from __future__ import annotations

import tomllib
from pathlib import Path

from click.testing import CliRunner

from ottla.zookeeper.cli import ExtensibleGroup, zookeeper


def test_a_command_that_a_missing_package_adds_names_the_package() -> None:
    group = ExtensibleGroup(
        "zookeeper", entry_point_group="ottla.nothing.commands", packages={"rebuild": "ottla-tools"}
    )

    done = CliRunner().invoke(group, ["rebuild"])

    assert done.exit_code == 2
    assert done.output.endswith("No such command 'rebuild': python -m pip install ottla-tools brings it.\n")
    assert CliRunner().invoke(group, ["others"]).output.endswith("Error: No such command 'others'.\n")


def test_the_commands_that_other_packages_add_are_known() -> None:
    assert isinstance(zookeeper, ExtensibleGroup)
    found = {
        name: project["name"]
        for path in Path(__file__).parents[2].glob("*/pyproject.toml")
        for project in [tomllib.loads(path.read_text(encoding="utf-8"))["project"]]
        for name in project.get("entry-points", {}).get(zookeeper.entry_point_group, {})
    }

    assert found == zookeeper.packages
