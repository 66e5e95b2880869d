"""`ottla profile`: named brokers and logins for all commands that connect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.client.commands import json_option, key_values, secret_options, secret_source, show, show_json

if TYPE_CHECKING:
    from ottla.client.profiles import Profile

_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")


@click.group()
def profile() -> None:
    """Keep brokers and logins under names, for `ottla ... --profile NAME`.

    Profiles stand in the TOML file that OTTLA_PROFILES names; without it in ottla/profiles.toml in
    XDG_CONFIG_HOME, which is ~/.config by default. They hold no secret: only where it is.
    """


@profile.command()
@click.argument("name")
@click.option(
    "--bootstrap-server", "-b", "servers", metavar="HOST:PORT", required=True,
    help="A broker of the cluster, or several separated by commas.",
)  # fmt: skip
@click.option(
    "--security-protocol",
    type=click.Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    default="PLAINTEXT",
    show_default=True,
    help="How connections are secured.",
)
@click.option("--ssl-cafile", type=click.Path(), help="Trust the authorities of this PEM file.")
@click.option("--ssl-certfile", type=click.Path(), help="A PEM file with the certificate of this client.")
@click.option("--ssl-keyfile", type=click.Path(), help="A PEM file with the key of the certificate.")
@click.option("--sasl-mechanism", metavar="NAME", help="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, ...")
@click.option("--username", help="The user of the login.")
@secret_options("password of the login", "password")
@click.option(
    "--set", "values", metavar="KEY=VALUE", multiple=True, help="Any setting of clients. Repeatable."
)
@click.option("--replace", is_flag=True, help="Replace the profile if it exists.")
def add(name: str, servers: str, values: tuple[str, ...], replace: bool, **given: Any) -> None:
    """Add a profile. The password stays where it is; the profile says only where.

    \b
    Examples:
      ottla profile add local -b 127.0.0.1:9092
      ottla profile add production -b kafka.example.com:9093 --security-protocol SASL_SSL \\
        --sasl-mechanism SCRAM-SHA-512 --username josef --password-env KAFKA_PASSWORD
      ottla profile add staging -b staging:9093 --security-protocol SASL_SSL \\
        --username josef --password-command "pass show kafka/staging"
    """
    from ottla.client.profiles import Profile, ProfileError, add_profile, is_secret, profiles_path

    settings: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": given["security_protocol"]}
    settings |= {key: str(Path(given[key]).absolute()) for key in _FILES if given[key] is not None}
    settings |= {"sasl_mechanism": given["sasl_mechanism"], "sasl_username": given["username"]}
    settings["sasl_password"] = secret_source("password", given)
    for key, value in key_values(values).items():
        if is_secret(key):
            raise click.UsageError(f"{key} is a secret: name a place for it in {profiles_path()} instead")
        settings[key] = value
    present = {key: value for key, value in settings.items() if value is not None}
    try:
        add_profile(Profile(name, profiles_path(), present), replace=replace)
    except ProfileError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Added profile {name} to {profiles_path()}: try `ottla cluster describe --profile {name}`.")


@profile.command(name="list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List profiles.

    \b
    Examples:
      ottla profile list
      ottla profile list --json
    """
    rows = [
        (
            found.name,
            _setting(found, "bootstrap_servers"),
            _setting(found, "security_protocol") or "PLAINTEXT",
            _setting(found, "sasl_mechanism"),
            _setting(found, "sasl_username"),
        )
        for found in _read().values()
    ]
    if rows or as_json:
        show(("profile", "bootstrap servers", "security", "mechanism", "user"), rows, as_json=as_json)
    else:
        from ottla.client.profiles import profiles_path

        click.echo(f"{profiles_path()} has no profile; `ottla profile add` adds one.")


@profile.command(name="show")
@click.argument("name")
@json_option
def show_profile(name: str, as_json: bool) -> None:
    """Show the settings of a profile; of a secret only the place.

    \b
    Examples:
      ottla profile show production
      ottla profile show production --json
    """
    from ottla.client.profiles import ProfileError, SecretSource, read_profile

    try:
        found = read_profile(name)
    except ProfileError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        settings = {
            key: {value.kind: value.reference} if isinstance(value, SecretSource) else value
            for key, value in found.settings.items()
        }
        show_json({"profile": name, "path": str(found.path), "settings": settings})
        return
    click.echo(f"Profile {name} of {found.path}")
    rows = [
        (key, f"(in {value})" if isinstance(value, SecretSource) else str(value))
        for key, value in found.settings.items()
    ]
    show(("key", "value"), rows, as_json=False)


@profile.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a profile; secrets stay where they are.

    \b
    Examples:
      ottla profile remove staging
    """
    from ottla.client.profiles import ProfileError, profiles_path, remove_profile

    try:
        remove_profile(name)
    except ProfileError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Removed profile {name} from {profiles_path()}.")


def _read() -> dict[str, Profile]:
    from ottla.client.profiles import ProfileError, read_profiles

    try:
        return read_profiles()
    except ProfileError as error:
        raise click.ClickException(str(error)) from None


def _setting(found: Profile, name: str) -> object:
    return found.settings.get(name, found.settings.get(name.replace("_", ".")))
