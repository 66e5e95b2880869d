"""`ottla registry`."""

from __future__ import annotations

from pathlib import Path

import click

from ottla.client.commands import cluster_options


@click.group()
def registry() -> None:
    """Run a schema registry."""


@registry.command()
@cluster_options
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Where to serve."
)
@click.option(
    "--topic", metavar="NAME", default="_schemas", show_default=True,
    help="The topic with the schemas, made if it is not there.",
)  # fmt: skip
@click.option(
    "--replication-factor", type=click.IntRange(1), default=3, show_default=True,
    help="The replicas of a topic that is made; fewer where there are fewer brokers.",
)  # fmt: skip
@click.option(
    "--users", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with lines NAME:PASSWORD: each request needs one of these logins.",
)  # fmt: skip
@click.option(
    "--tls-certificate", "certificate", metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Serve by TLS: certificates in PEM.",
)  # fmt: skip
@click.option(
    "--tls-key", "key", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The key of the certificate in PEM, if it has a file of its own.",
)  # fmt: skip
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without TLS or without logins, in a closed network.",
)
def start(
    bootstrap_server: str, properties: str | None, listen: str, topic: str, replication_factor: int,
    users: Path | None, certificate: Path | None, key: Path | None, insecure: bool,
) -> None:  # fmt: skip
    """Serve schemas with Confluent's interface, until Ctrl-C.

    Schemas are in a compacted topic. Several registries of one topic may run: each of them answers, and takes
    changes.

    \b
    Examples:
      ottla registry start
      ottla registry start -b broker:9092 --listen 0.0.0.0:8081 --users users --tls-certificate registry.pem
    """
    import asyncio
    from dataclasses import replace

    from ottla.client.commands import load_config, one_line
    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    try:
        from ottla.registry.server.serving import RegistrySettings, serve
    except ImportError as error:
        package = "python -m pip install 'ottla-registry[server]'"
        raise click.ClickException(f"{error.name} is not installed: {package}") from None
    host, port = _address(listen)
    settings = RegistrySettings(
        client=replace(load_config(properties), bootstrap_servers=bootstrap_server), host=host, port=port,
        topic=topic, replication_factor=replication_factor, users=users, certificate=certificate, key=key,
        is_insecure=insecure,
    )  # fmt: skip
    try:
        asyncio.run(serve(settings, lambda url, _: click.echo(f"ottla registry is ready at {url}")))
    except* (ClientError, KafkaError, ValueError) as failed:
        first = failed.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise click.ClickException(one_line(first)) from None


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    return host.strip("[]") or "0.0.0.0", int(port)
