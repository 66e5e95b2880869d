from __future__ import annotations

import errno
import json
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import PACKAGES, InstalledCommands, main, own_entry_point
from ottla.client.commands import ExtensibleGroup, one_line, show
from ottla.client.config import ClientConfig
from ottla.client.errors import AuthenticationFailed, NoBrokerAvailable
from ottla.client.settings import from_properties


def ottla(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_columns_of_numbers_are_right_aligned_also_with_one_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(("topic", "offset", "read only"), [("t", 100, True), ("t", None, False)], as_json=False)

    assert capsys.readouterr().out.splitlines()[1:] == ["t         100  yes", "t           -  no"]


def test_a_table_escapes_control_characters_and_json_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a\x1b[31m\nb\0\u2028ü",)]

    show(("id",), rows, as_json=False)
    table = capsys.readouterr().out
    show(("id",), rows, as_json=True)

    assert table == "ID\na\\x1b[31m\\nb\\x00\\u2028ü\n"
    assert json.loads(capsys.readouterr().out) == [{"id": rows[0][0]}]


def test_a_table_cuts_what_is_longer_than_a_cell_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    show(("id",), [("x" * 60,), ("y" * 61,)], as_json=False, max_cell_length=60)

    assert capsys.readouterr().out.splitlines()[1:] == ["x" * 60, "y" * 59 + "…"]


def test_properties_of_kafka_are_read(tmp_path: Path) -> None:
    config = from_properties(
        ClientConfig,
        {
            "client.id": "me",
            "request.timeout.ms": "5",
            "security.protocol": "SSL",
            "ssl.check.hostname": "false",
        },
    )

    assert (config.client_id, config.request_timeout_ms) == ("me", 5)
    assert config.security.uses_tls
    assert not config.security.ssl_check_hostname


@pytest.mark.parametrize(
    ("key", "value"),
    [("request.timeout.ms", "soon"), ("ssl.check.hostname", "maybe"), ("sasl.jaas.config", "x")],
)
def test_invalid_properties_are_named(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=key):
        from_properties(ClientConfig, {key: value})


def test_a_command_of_a_package_that_is_not_installed_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla.client.cli._installed", dict)
    monkeypatch.setattr("ottla.client.cli.own_entry_point", lambda *_: None)

    done = ottla("pipeline", "run")

    advice = "Error: No such command 'pipeline': python -m pip install ottla-pipeline brings it.\n"
    assert (done.exit_code, done.output.endswith(advice)) == (2, True)
    assert ottla("pipelines").output.endswith("Error: No such command 'pipelines'.\n")


def test_an_entry_point_is_read_from_the_metadata_of_its_package_alone(tmp_path: Path) -> None:
    metadata = tmp_path / "ottla_admin-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[other]\ntopic = x:y\n\n[ottla.commands]\ntopic = a.b:c\n")
    (tmp_path / "ottla_admin_tools-1.0.dist-info").mkdir()
    folders = [str(tmp_path / "gone"), str(tmp_path)]

    assert own_entry_point("ottla-admin", "topic", folders) == "a.b:c"
    assert own_entry_point("ottla-admin", "x", folders) is None
    assert own_entry_point("ottla-broker", "topic", folders) is None


def test_a_command_that_a_missing_package_adds_to_a_group_names_the_package() -> None:
    group = ExtensibleGroup(
        "group", entry_point_group="ottla.nothing.commands", packages={"offsets": "ottla-consumer"}
    )

    done = CliRunner().invoke(group, ["offsets"])

    advice = "Error: No such command 'offsets': python -m pip install ottla-consumer brings it.\n"
    assert (done.exit_code, done.output.endswith(advice)) == (2, True)
    assert CliRunner().invoke(group, ["others"]).output.endswith("Error: No such command 'others'.\n")


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("reset", " Did you mean 'reset-offsets'?"),
        ("descirbe", " Did you mean 'describe'?"),
        ("DESCRIBE", " Did you mean 'describe'?"),
        ("xyz", ""),
    ],
)
def test_an_unknown_command_of_a_group_is_refused_with_the_nearest_name(
    typed: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = click.Group(
        "group", {name: click.Command(name) for name in ("describe", "list", "reset-offsets")}
    )
    monkeypatch.setattr(InstalledCommands, "get_command", lambda *_: group)

    done = ottla("group", typed)

    expected = f"Error: No such command {typed!r}.{advice}\n"
    assert (done.exit_code, done.output.endswith(expected)) == (2, True)
    assert "Usage: main group" in done.output


def test_the_commands_of_all_packages_are_known() -> None:
    found: dict[str, str] = {}
    for path in Path(__file__).parents[2].glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        commands = project.get("entry-points", {}).get("ottla.commands", {})
        found |= dict.fromkeys(commands, project["name"])

    assert found == PACKAGES


def test_a_full_disk_that_a_command_works_on_is_not_taken_for_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    def topic() -> None:
        click.echo("begun")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(InstalledCommands, "get_command", lambda *_: topic)

    done = ottla("topic")

    assert isinstance(done.exception, OSError)
    assert done.exception.errno == errno.ENOSPC
    assert "the output" not in done.output


def test_an_error_with_text_of_a_broker_is_one_printable_line() -> None:
    text = "the broker refused the login: \x1b]0;title\x07 no\nline"

    assert one_line(AuthenticationFailed(text)) == r"the broker refused the login: \x1b]0;title\x07 no line"
    assert "\x1b" not in one_line(NoBrokerAvailable([text]))
