"""Profiles: one file, no secret in clear, and what commands take from it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import main
from ottla.client.commands import cluster_options, load_config
from ottla.client.profiles import (
    Profile,
    ProfileError,
    SecretSource,
    add_profile,
    profile_settings,
    profiles_path,
    read_profile,
    read_profiles,
)

ABOUT_HOME = ("HOME", "XDG_CONFIG_HOME", "OTTLA_PROFILES")
LOGIN = 'security_protocol = "SASL_PLAINTEXT"\nsasl_username = "josef"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.delenv("OTTLA_PROFILE", raising=False)
    return tmp_path / "profiles.toml"


def ottla(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@click.command()
@cluster_options
def connecting(bootstrap_server: str, properties: str | None) -> None:
    security = load_config(properties).security
    click.echo(f"{bootstrap_server} {security.security_protocol} {security.sasl_password}")


def connect(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(connecting, arguments)


def test_the_file_is_in_the_users_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_PROFILES", raising=False)
    monkeypatch.setenv("HOME", "/home/josef")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert profiles_path() == Path("/home/josef/.config/ottla/profiles.toml")

    monkeypatch.setenv("XDG_CONFIG_HOME", "/configuration")
    assert profiles_path() == Path("/configuration/ottla/profiles.toml")


@pytest.mark.parametrize(
    "source",
    ['{ env = "SECRET" }', '{ file = "secret" }', "{ command = \"printf 'p%sw' ' '\" }"],
)
def test_a_secret_comes_from_where_the_profile_says(
    file: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("SECRET", "p w")
    file.with_name("secret").write_text("p w\n")
    file.write_text(f"[local]\n{LOGIN}sasl_password = {source}\n")

    assert read_profile("local").config().security.sasl_password == "p w"
    assert "p w" not in repr(read_profile("local"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('sasl_password = "p"', "holds sasl_password in clear: write { env ="),
        ('"sasl.password" = "p"', "holds sasl.password in clear"),
        ('sasl_plain_password = "p"', "holds sasl_plain_password in clear"),
        ("sasl_jaas_config = 'x password=\"p\";'", "holds sasl_jaas_config in clear"),
        ('sasl_password = { env = "NOT_SET" }', "environment variable NOT_SET is not set"),
        ('sasl_password = { file = "missing" }', "missing cannot be read: No such file"),
        ('sasl_password = { command = "exit 3" }', "'exit 3' for a secret ended with 3"),
        ('sasl_password = { command = "true" }', "holds an empty secret"),
        ('sasl_password = { keyring = "kafka" }', "must be SERVICE/USER"),
        ('sasl_password = { vault = "x" }', "must be a value, or for a secret"),
        ('sasl_pasword = { env = "HOME" }', "did you mean 'sasl.password'"),
        ("sasl_mechanism = 1979-05-27", "sasl_mechanism must be text or a number"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(file: Path, line: str, words: str) -> None:
    file.write_text(f"[local]\n{LOGIN}{line}\n")

    with pytest.raises(ProfileError) as caught:
        read_profile("local").config()

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[local", "is not TOML"),
        ('x = "y"\n', "'x' stands before the first"),
        ("[other]\n[third]\n", "has no profile 'local': it has other, third; `ottla profile add`"),
        ("", "it has none"),
    ],
)
def test_a_profile_that_is_not_there_is_an_error_with_those_that_are(
    file: Path, text: str, words: str
) -> None:
    file.write_text(text)

    done = connect("--profile", "local")

    assert done.exit_code == 2
    assert words in done.output


def test_files_are_relative_to_the_file_of_profiles(file: Path) -> None:
    file.with_name("ca.pem").write_text("")
    file.write_text('[local]\nsecurity_protocol = "SSL"\nssl_cafile = "ca.pem"\n')

    assert read_profile("local").config().security.ssl_cafile == str(file.with_name("ca.pem"))


def test_a_program_takes_the_settings_of_a_profile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "p")
    file.write_text(f'[local]\n"client.id" = "me"\n{LOGIN}sasl_password = {{ env = "SECRET" }}\n')

    assert profile_settings("local") == {
        "client_id": "me",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_username": "josef",
        "sasl_password": "p",
    }


def test_a_command_connects_with_the_profile_it_is_given(file: Path) -> None:
    file.write_text(
        f'[local]\nbootstrap_servers = "there:1"\n{LOGIN}sasl_password = {{ env = "SECRET" }}\n'
        '[plain]\nbootstrap_servers = ["here:1", "here:2"]\n'
    )

    assert connect("--profile", "local", env={"SECRET": "p"}).output == "there:1 SASL_PLAINTEXT p\n"
    assert connect(env={"OTTLA_PROFILE": "plain"}).output == "here:1,here:2 PLAINTEXT None\n"
    assert connect("--profile", "plain", "-b", "other:1").output == "other:1 PLAINTEXT None\n"
    surroundings = {"OTTLA_BOOTSTRAP_SERVER": "other:1"}
    assert connect("--profile", "plain", env=surroundings).output == "here:1,here:2 PLAINTEXT None\n"
    surroundings["OTTLA_PROFILE"] = "plain"
    assert connect(env=surroundings).output == "other:1 PLAINTEXT None\n"
    assert connect().output == "127.0.0.1:9092 PLAINTEXT None\n"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("OTTLA_BOOTSTRAP_SERVERS", "OTTLA_BOOTSTRAP_SERVER"), ("OTTLA_PROFIL", "OTTLA_PROFILE")],
)
def test_a_misspelled_variable_is_refused_where_the_default_would_be_asked(
    variable: str, meant: str, file: Path
) -> None:
    done = connect(env={variable: "other:1"})

    message = f"Error: {variable} is not a variable of Ottla; did you mean {meant}?\n"
    assert (done.exit_code, done.output.endswith(message)) == (2, True)
    assert connect("-b", "named:1", env={variable: "other:1"}).output == "named:1 PLAINTEXT None\n"


def test_variables_of_brokers_and_of_kubernetes_are_no_misspelled_ones(file: Path) -> None:
    others = {
        "OTTLA_BOOTSTRAP_SERVICE_HOST": "10.0.0.7",
        "OTTLA_ZOOKEEPER_CONNECT": "zk",
        "OTTLA_LISTENERS": "x",
    }

    assert connect(env=others).output == "127.0.0.1:9092 PLAINTEXT None\n"


def test_a_properties_file_wins_over_the_environments_profile_but_not_over_the_users(
    file: Path, tmp_path: Path
) -> None:
    file.write_text('[local]\nsecurity_protocol = "SSL"\n')
    properties = tmp_path / "client.properties"
    properties.write_text("client.id=me\n")

    by_environment = connect("--command-config", str(properties), env={"OTTLA_PROFILE": "local"})
    properties.write_text("bootstrap.servers=there:1,there:2\n")
    with_brokers = connect("--command-config", str(properties), env={"OTTLA_BOOTSTRAP_SERVER": "other:1"})
    by_user = connect("--command-config", str(properties), "-b", "here:1")
    by_both = connect("--command-config", str(properties), "--profile", "local")

    assert by_environment.output == "127.0.0.1:9092 PLAINTEXT None\n"
    assert "give --profile or --command-config, not both" in by_both.output
    assert with_brokers.output == "there:1,there:2 PLAINTEXT None\n"
    assert by_user.output == "here:1 PLAINTEXT None\n"


def test_added_profiles_are_listed_and_shown_and_only_the_owner_reads_the_file(file: Path) -> None:
    file.write_text("# mine\n[other]  # keep\nclient_id = 'a'\n")
    added = ottla(
        "profile", "add", "local", "-b", "127.0.0.1:9092", "--security-protocol", "SASL_PLAINTEXT",
        "--sasl-mechanism", "SCRAM-SHA-512", "--username", 'jo"sef', "--password-command", "pass show k",
        "--set", "request.timeout.ms=5000",
    )  # fmt: skip
    listed = ottla("profile", "list", "--json")
    shown = ottla("profile", "show", "local")

    assert added.exit_code == 0, added.output
    assert file.read_text().startswith("# mine\n[other]  # keep\nclient_id = 'a'\n\n[local]\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text())["local"]["sasl_password"] == {"command": "pass show k"}
    assert json.loads(listed.output)[1]["user"] == 'jo"sef'
    assert shown.output.splitlines()[-2].split(None, 1) == ["sasl_password", "(in command 'pass show k')"]


def test_a_profile_is_replaced_only_when_asked_and_removed_alone(file: Path) -> None:
    arguments = ("profile", "add", "local", "-b")
    assert ottla(*arguments, "first:1").exit_code == 0
    assert ottla("profile", "add", "other", "-b", "o:1").exit_code == 0

    refused = ottla(*arguments, "second:1")
    replaced = ottla(*arguments, "second:1", "--replace")

    assert (refused.exit_code, replaced.exit_code) == (1, 0)
    assert "--replace replaces it" in refused.output
    assert {name: found.settings["bootstrap_servers"] for name, found in read_profiles().items()} == {
        "other": "o:1", "local": "second:1",
    }  # fmt: skip
    assert ottla("profile", "remove", "local").exit_code == 0
    assert list(read_profiles()) == ["other"]


def test_a_file_that_lines_do_not_divide_is_left_to_an_editor(file: Path) -> None:
    text = '[other]\nclient_id = """\n[local]\n"""\n'
    file.write_text(text)

    with pytest.raises(ProfileError, match="only an editor can change"):
        add_profile(Profile("local", file, {"bootstrap_servers": "a:1"}))
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a b", "-b", "x:1"), "must consist of letters, digits, - and _"),
        (("a", "-b", "x:1", "--set", "sasl.password=p"), "sasl.password is a secret"),
        (("a", "-b", "x:1", "--set", "client.idd=p"), "did you mean 'client.id'"),
        (("a", "-b", "x:1", "--username", "u"), "sasl_username has no effect"),
        (("a", "-b", "x:1", "--password-env", "A", "--password-file", "b"), "give one of --password-env"),
    ],
)
def test_a_profile_that_could_not_connect_is_not_added(
    file: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = ottla("profile", "add", *arguments)

    assert done.exit_code != 0
    assert words in done.output
    assert not file.exists()


def test_no_option_takes_a_password() -> None:
    done = ottla("profile", "add", "a", "-b", "x:1", "--password", "secret")

    assert done.exit_code == 2
    assert "No such option" in done.output


def test_a_source_of_a_secret_is_shown_without_it() -> None:
    assert str(SecretSource("env", "NAME")) == "env 'NAME'"


def test_a_user_without_a_home_is_told_how_to_name_the_file(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user whom the system does not know")
    program = (
        "import os\n"
        "from ottla.client.profiles import ProfileError, profiles_path\n"
        "os.setuid(2_000_000_000)\n"
        "try:\n    profiles_path()\nexcept ProfileError as error:\n    print(error)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ABOUT_HOME}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout == "this user has no home directory: OTTLA_PROFILES names the file of profiles\n", done


def test_a_profile_is_written_through_a_symbolic_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "profiles.toml"
    real.parent.mkdir()
    real.write_text("# mine\n")
    file.symlink_to(real)

    add_profile(Profile("a", file, {"bootstrap_servers": "x:1"}))

    assert file.is_symlink()
    assert real.read_text() == '# mine\n\n[a]\nbootstrap_servers = "x:1"\n'
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_profiles_that_everybody_could_have_written_run_no_command(file: Path) -> None:
    file.write_text(f'[a]\n{LOGIN}sasl_password = {{ command = "echo x" }}\n')
    file.chmod(0o666)

    with pytest.raises(ProfileError, match=r"everybody may write .*profiles.toml: chmod o-w"):
        read_profile("a")
    file.chmod(0o664)
    assert read_profile("a").config().security.sasl_password == "x"


def test_a_command_that_prints_no_text_is_named_and_its_bytes_are_not(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"s3cret\xff")
    source = SecretSource("command", f"cat {tmp_path / 'bytes'}")

    with pytest.raises(ProfileError, match="for a secret printed no text") as refused:
        source.read()

    assert (
        "s3cret" not in f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__suppress_context__}"
    )
