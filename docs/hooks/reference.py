"""Generate the reference pages from the code: configuration, command, APIs, errors, metrics.

Over 500 lines because MkDocs loads a hook as one file, and each page is some lines of it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from ottla.broker.api.routes import ROUTES
from ottla.broker.config import (
    ALIASES,
    IGNORED,
    IGNORED_PREFIXES,
    SECURITY_KEYS,
    SECURITY_PREFIXES,
    TOPIC_SYNONYMS,
    BrokerConfig,
    Setting,
    keys_of,
    topic_keys,
)
from ottla.broker.metrics.catalogue import catalogue
from ottla.broker.requests.routes import Route
from ottla.client.cli import main as ottla
from ottla.client.config import ClientConfig
from ottla.client.config_definition import documentation, options
from ottla.client.metrics import Metrics
from ottla.client.security import SecurityConfig
from ottla.client.settings import Alias, settings_of
from ottla.client.settings import aliases as aliases_of
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.metrics import ConsumerMetrics
from ottla.pipeline.connector_options import CLIENTS, CONFIGURATION, CONNECTOR, CONSUMER, OPTIONS, PRODUCER
from ottla.pipeline.options import options_of, treatment
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.sink.config import REFUSED as NO_SETTINGS_OF_SINK
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.source.config import REFUSED as NO_SETTINGS_OF_SOURCE
from ottla.pipeline.source.config import SourceConfig
from ottla.producer.config import ProducerConfig
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.partitioner import NAMED as PARTITIONERS
from ottla.protocol.errors import ErrorCode, error_class
from ottla.streams.config import READING_DEFAULTS, StreamsConfig
from ottla.streams.operating.metrics import StreamsMetrics


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the generated pages in the place of those that say, in a clone, how they are made."""
    pages = {
        "configuration": broker_configuration(),
        "topic-configuration": topic_configuration(),
        "producer-settings": client_settings("Producer", ProducerConfig),
        "consumer-settings": client_settings("Consumer", ConsumerConfig),
        "streams-settings": streams_settings(),
        "streams-metrics": streams_metrics(),
        "client-metrics": client_metrics(),
        "command": command_reference(),
        "apis": apis(),
        "errors": errors(),
        "metrics": metrics(),
        "spark-options": spark_options(),
    }
    for name, lines in pages.items():
        uri, content = f"reference/{name}.md", "\n".join(lines) + "\n"
        files.remove(files.src_uris[uri])
        files.append(File.generated(config, uri, content=content))
    return files


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Write a Markdown table."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


def code(text: str | None) -> str:
    """Format a value as code that wraps only after dots and commas, or as "(none)"."""
    if text is None or text == "":
        return "(none)"
    plain = re.sub(r"[_*]", lambda found: f"&#{ord(found[0])};", html.escape(text))
    breaking = re.sub("([.,])", r"\1<wbr>", plain)
    return f"<code>{breaking}</code>"


def linked(key: str) -> str:
    """Format a key as code that a link can lead to: `configuration/#log.retention.hours`."""
    return f'<a class="key" id="{html.escape(key)}" href="#{html.escape(key)}">{code(key)}</a>'


def broker_configuration() -> Iterator[str]:
    """Write the page of the broker's keys."""
    keys = list(keys_of(BrokerConfig).values())
    yield "# Broker configuration"
    yield ""
    yield (
        "Set these keys in a `server.properties` file, on the command line (`--set key=value`) or in the "
        "environment (`OTTLA_LOG_RETENTION_HOURS=24`). They have the meaning and defaults of Apache Kafka "
        "unless noted."
    )
    yield ""
    yield "## Keys of Kafka"
    yield ""
    yield from key_table(key for key in keys if not key.ottla_only)
    yield "## Keys of Ottla"
    yield ""
    yield from key_table(key for key in keys if key.ottla_only)
    yield "## Older names"
    yield ""
    yield from table(("Name", "Stands for"), ((code(old), code(new)) for old, new in ALIASES.items()))
    yield "## Keys without effect"
    yield ""
    yield (
        "The broker starts with them and names each in a warning. So it does with the keys above whose "
        'description begins with "No effect yet" or "Accepted for compatibility".'
    )
    yield ""
    ignored = {**IGNORED, **{f"{prefix}…": why for prefix, why in IGNORED_PREFIXES.items()}}
    yield from table(("Key", "Why"), ((code(name), why) for name, why in ignored.items()))
    yield "## Keys that refuse the start"
    yield ""
    yield (
        "They ask for protection that is not there yet: a broker that ignored them "
        "would be open without a word. They refuse the start when they are set to anything but the value "
        "that asks for no protection, also with `listener.name.….` before them."
    )
    yield ""
    refused = {**{f"{prefix}…": None for prefix in SECURITY_PREFIXES}, **SECURITY_KEYS}
    yield from table(("Key", "Value that is accepted"), ((code(k), code(v)) for k, v in refused.items()))


def topic_configuration() -> Iterator[str]:
    """Write the page of the topics' keys."""
    yield "# Topic configuration"
    yield ""
    yield (
        "Set with `ottla topic create --config`, `ottla topic alter --config` or `ottla config alter`. "
        "A topic without a value takes that of the broker's key."
    )
    yield ""
    rows = (
        (
            linked(key.name),
            key.type,
            code(key.show(key.default)),
            ", ".join(map(code, TOPIC_SYNONYMS.get(key.name, ()))) or code(None),
            key.doc,
        )
        for key in topic_keys().values()
    )
    yield from table(("Key", "Type", "Default", "Broker's key", "What it does"), rows)


def key_table(keys: Iterable[Setting]) -> Iterator[str]:
    """Write a table of keys."""
    rows = ((linked(key.name), key.type, code(key.show(key.default)), key.update, key.doc) for key in keys)
    yield from table(("Key", "Type", "Default", "Change", "What it does"), rows)


def client_settings(name: str, config: type[Any]) -> Iterator[str]:
    """Write the page of a client's settings, with all their names."""
    yield f"# {name} settings"
    yield ""
    yield (
        f"Settings are keywords of `{name}` and `Sync{name}`, and fields of `{config.__name__}` and the "
        f"configs it holds. A properties file, or a mapping for `{config.__name__}.from_properties`, has "
        "dots instead of underscores: `client_id` is `client.id` there."
    )
    yield ""
    for title, part in ((name, config), ("Connections", ClientConfig), ("Security", SecurityConfig)):
        yield f"## {title}"
        yield ""
        yield from table(("Setting", "Type", "Default", "What it does"), setting_rows(part))
    if config is ProducerConfig:
        named = ", ".join(code(each) for each in ("default", *PARTITIONERS))
        yield f"Named partitioners: {named}."
        yield ""
    others = dict(sorted(aliases_of(config).items()))
    yield from other_names({key: each for key, each in others.items() if not each.advice})
    yield "## Settings without effect"
    yield ""
    yield "They are accepted, and a warning names the alternative."
    yield ""
    gone = (
        (code(key.replace("_", ".")), each.source, each.advice) for key, each in others.items() if each.advice
    )
    yield from table(("Setting", "Used by", "Instead"), gone)


def streams_settings() -> Iterator[str]:
    """Write the page of the settings of streams."""
    yield "# Streams settings"
    yield ""
    yield (
        "Settings are keywords of `App`, of `@app.handle` and of `Processor`, and fields of `StreamsConfig`; "
        "those of a handler win over those of its app. A properties file, or a mapping for "
        "`StreamsConfig.from_properties`, has dots instead of underscores."
    )
    yield ""
    yield (
        "Every setting of [the consumer](consumer-settings.md) and of [the producer](producer-settings.md) "
        "may stand beside them, such as `bootstrap_servers` or `compression_type`. What both have is set for "
        "both; a name of this page, such as `retries` or `batch_size`, is set for streams alone: give "
        "`producer=ProducerConfig(...)` for the producer's. Two settings of the consumer have other defaults "
        f"here: {' and '.join(f'{code(name)} is {code(value)}' for name, value in READING_DEFAULTS.items())}."
    )
    yield ""
    yield from table(("Setting", "Type", "Default", "What it does"), setting_rows(StreamsConfig))


def streams_metrics() -> Iterator[str]:
    """Write the page of the metrics of streams."""
    yield "# Metrics of streams"
    yield ""
    yield (
        "`/metrics` of [an app's status page](../howto/deploy-a-streams-app.md#health) has them for each "
        "handler, with the labels `handler` and `group`, beside those of its "
        "[consumer and producer](client-metrics.md): `retry_total` is `kafka_streams_retry_total` there."
    )
    yield ""
    yield from metrics_table(StreamsMetrics)


def setting_rows(config: type[Any]) -> Iterator[tuple[str, ...]]:
    """Yield name, type, default and documentation of a class's own settings."""
    known = settings_of(config)
    for name, doc in documentation(config).items():
        if name in ("client", "security", "consumer", "producer"):
            continue
        default = known[name].default
        shown = "" if default is None else str(default) if isinstance(default, str | int | float) else "()"
        if isinstance(default, Mapping):
            shown = str(dict(default))
        if isinstance(default, tuple):
            shown = ",".join(default)
        kind = kind_of(known[name].annotation, config.__annotations__[name])
        yield linked(name), kind, code(shown), doc


def kind_of(kind: Any, otherwise: str) -> str:
    """Describe the type of a setting."""
    kinds = [each for each in options(kind) if each is not type(None)]
    if all(each in (int, float, bool, str) or get_origin(each) is Literal for each in kinds):
        parts = [
            ", ".join(code(str(value)) for value in get_args(each)) if get_args(each) else each.__name__
            for each in kinds
        ]
        return " or ".join(parts)
    return code(otherwise.replace(" | None", ""))


def other_names(aliases: Mapping[str, Alias]) -> Iterator[str]:
    """Write the table of further names of settings."""
    yield "## Other names"
    yield ""
    rows = (
        (code(key.replace("_", ".")), code(key), each.source, code(each.field or "several"))
        for key, each in aliases.items()
    )
    yield from table(("In a file", "As a keyword", "Used by", "Stands for"), rows)


def client_metrics() -> Iterator[str]:
    """Write the page of the clients' metrics."""
    yield "# Metrics of producers and consumers"
    yield ""
    yield (
        "`producer.metrics` and `consumer.metrics` have them as attributes; metrics with tags exist once for "
        "each topic or partition. In Prometheus `record_send_total` is `kafka_producer_record_send_total`, "
        "and that of a topic `kafka_producer_topic_record_send_total`; OpenTelemetry has dots instead: "
        "`kafka.producer.topic.record_send_total`."
    )
    yield ""
    for title, metrics in (("Producer", ProducerMetrics), ("Consumer", ConsumerMetrics)):
        yield f"## {title}"
        yield ""
        yield from metrics_table(metrics)


def metrics_table(metrics: type[Metrics]) -> Iterator[str]:
    """Write the table of one client's metrics."""
    rows = (
        (code(each.name), ", ".join(each.tags), each.kind, each.meaning)
        for each in metrics.all_descriptions()
    )
    yield from table(("Name", "Tags", "Kind", "Meaning"), rows)


def command_reference() -> Iterator[str]:
    """Write the page of the `ottla` command."""
    yield "# The `ottla` command"
    yield ""
    yield "Commands that connect to a cluster take `--bootstrap-server`, or `OTTLA_BOOTSTRAP_SERVER`."
    yield ""
    context = click.Context(ottla, info_name="ottla")
    for name in ottla.list_commands(context):
        command = ottla.get_command(context, name)
        assert command is not None
        yield from command_pages(command, click.Context(command, info_name=name, parent=context), 2)


def command_pages(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Write a command and its subcommands."""
    yield f"{'#' * level} {context.command_path}"
    yield ""
    yield "```text"
    yield command.get_help(context)
    yield "```"
    yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from command_pages(
                    below, click.Context(below, info_name=name, parent=context), level + 1
                )


def spark_options() -> Iterator[str]:
    """Write the page of the options of Spark's data sources."""
    yield "# Options of the data sources for Spark"
    yield ""
    yield (
        '`format("ottla")` reads and writes topics, `format("ottla-log")` reads the files of a log. Options '
        "of Spark's own Kafka source have the same name, default and meaning here. Names are not "
        "case-sensitive. An unknown option is an error that suggests the nearest known one; options of "
        "Spark's Kafka sink in a read, and of its source in a write, are left out with a note, and so are "
        "settings of the other client."
    )
    yield ""
    yield (
        "`ottla` requires `kafka.bootstrap.servers`. Any other setting of "
        "[the consumer](consumer-settings.md) or [the producer](producer-settings.md) is given by Kafka's "
        "name with the prefix `kafka.`: "
        "`kafka.isolation.level`, `kafka.security.protocol`, `kafka.compression.type`."
    )
    yield ""
    yield "## Reading topics"
    yield ""
    yield (
        '`spark.read.format("ottla")`, `spark.readStream.format("ottla")`. Give exactly one of '
        "`subscribe`, `subscribePattern` and `assign`. `kafka.group.id` is accepted without effect: the "
        "source joins no group."
    )
    yield ""
    yield from spark_table(SourceConfig)
    yield from refused_settings(NO_SETTINGS_OF_SOURCE)
    yield "## Writing topics"
    yield ""
    yield '`df.write.format("ottla")`, `df.writeStream.format("ottla")`:'
    yield "see [Write topics from Spark](../howto/write-topics-from-spark.md)."
    yield ""
    yield from spark_table(SinkConfig)
    yield from refused_settings(NO_SETTINGS_OF_SINK)
    yield "## Reading files of a log"
    yield ""
    yield '`spark.read.format("ottla-log")`:'
    yield "see [Backfill a lake from log files](../howto/backfill-from-log-files.md)."
    yield ""
    yield from spark_table(SegmentsConfig)
    yield from connector_options()


def connector_options() -> Iterator[str]:
    """Write the tables of the options of Spark's own connector, and their effect here."""
    yield "## Coming from Spark's own connector"
    yield ""
    yield (
        f"These are all options of `spark-sql-kafka-0-10` {CONNECTOR}. A line of a program that reads "
        '`format("kafka")` needs no other change than that word.'
    )
    yield ""
    rows = (
        (code(name), option_effect(name, SourceConfig), option_effect(name, SinkConfig)) for name in OPTIONS
    )
    yield from table(("Option", "Reads", "Writes"), rows)
    yield f"These are all settings of Kafka's clients {CLIENTS}, as options with the prefix `kafka.`:"
    yield ""
    settings = (
        (
            code(f"kafka.{name}"),
            setting_effect(name, ConsumerConfig, NO_SETTINGS_OF_SOURCE),
            setting_effect(name, ProducerConfig, NO_SETTINGS_OF_SINK),
        )
        for name in sorted(CONSUMER | PRODUCER)
    )
    yield from table(("Setting", "Reads", "Writes"), settings)
    yield "These settings in Spark's configuration have no effect:"
    yield ""
    yield from table(("Setting", "Why"), ((code(name), why) for name, why in CONFIGURATION.items()))


def option_effect(name: str, cls: type[Any]) -> str:
    """Return whether a data source takes an option of Spark's own connector, or why it has no effect."""
    if name.lower() in cls.without_effect:
        return f"ignored: {cls.without_effect[name.lower()]}"
    (found,) = (option for option in options_of(cls) if option.name == name)
    return f"ignored: {found.meaning.partition(': ')[2]}" if "without effect" in found.meaning else "accepted"


def setting_effect(name: str, config: type[Any], refused: Mapping[str, str | None]) -> str:
    """Return whether a data source takes a setting of Kafka's clients, and otherwise why it does not."""
    found = treatment(name, config, refused)
    return f"{found.kind}: {found.why}" if found.why else found.kind


def spark_table(cls: type[Any]) -> Iterator[str]:
    """Write the table of one data source's options."""
    rows = (
        (code(each.name), code(each.default), each.only or "both", each.meaning[0].upper() + each.meaning[1:])
        for each in options_of(cls)
    )
    yield from table(("Option", "Default", "For", "What it does"), rows)


def refused_settings(refused: Mapping[str, str | None]) -> Iterator[str]:
    """Write the table of the client's settings that the data source rejects."""
    yield "These settings are rejected:"
    yield ""
    rows = ((code(f"kafka.{name}"), why) for name, why in refused.items() if why)
    yield from table(("Setting", "Instead"), rows)


def apis() -> Iterator[str]:
    """Write the page of the APIs a broker serves."""
    yield "# APIs and versions"
    yield ""
    yield "The content of a broker's ApiVersions response, computed from the list that routes requests."
    yield ""
    yield (
        "The level is that of Apache Kafka 3.9.1 with ZooKeeper; tests compare the two responses. Left out "
        "are the APIs of logins, ACLs, delegation tokens and quotas, the group protocol of KIP-848, and "
        "Envelope, which serves controllers of KRaft. Between brokers the versions stay those of "
        "`inter.broker.protocol.version=2.8`; later ones of other brokers are accepted."
    )
    yield ""
    routes = sorted(ROUTES, key=lambda route: route.api_key)
    rows = (
        (int(route.api_key), camel_case(route.api_key.name), f"{route.min_version} to {route.max_version}")
        for route in routes
    )
    yield from table(("Key", "API", "Versions"), rows)
    yield from permissions(routes)


def permissions(routes: Sequence[Route[Any]]) -> Iterator[str]:
    """Write the permissions that the broker asks an authorizer for, by API."""
    yield "## Permissions"
    yield ""
    yield (
        "What each API asks for where `authorizer.class.name` is set, as Apache Kafka 3.9 does it. A "
        "request without a permission that is *needed* is refused as a whole. The others are asked for in "
        "the course of a request: for each topic, group or transactional id of a list, in place of one "
        "another (CREATE on the cluster or on the topic), or only to decide what else a response shows. "
        "DESCRIBE is implied by READ, WRITE, DELETE and ALTER, and DESCRIBE_CONFIGS by ALTER_CONFIGS. A "
        "topic, group or transactional id that a client named and may not see has an error; in lists that "
        "name none it is left out."
    )
    yield ""
    rows = (
        (
            camel_case(route.api_key.name),
            named(route, is_asked_first=True),
            named(route, is_asked_first=False),
        )
        for route in routes
        if route.permissions
    )
    yield from table(("API", "Needed", "Asked for in the course"), rows)


def named(route: Route[Any], *, is_asked_first: bool) -> str:
    """Name the permissions of a route that are asked for before its handler, or in it."""
    return ", ".join(
        f"{permission.operation.name} {camel_case(permission.type.name)}"
        for permission in route.permissions
        if permission.is_asked_first is is_asked_first
    )


def camel_case(name: str) -> str:
    """Write a constant's name as Kafka writes it in text."""
    return "".join(word.capitalize() for word in name.split("_"))


def errors() -> Iterator[str]:
    """Write the page of the error codes."""
    yield "# Errors"
    yield ""
    yield (
        "Kafka's error codes and their classes in `ottla.protocol.errors`. *Retriable*: the same request may "
        "succeed later. *Stale*: the client must refresh its metadata first."
    )
    yield ""
    rows = (
        (int(error), error.name, code(kind.__name__), "yes" if kind.retriable else "",
         "yes" if kind.refresh_metadata else "", kind.description)
        for error in sorted(ErrorCode)
        if error != ErrorCode.NONE
        for kind in [error_class(error)]
    )  # fmt: skip
    yield from table(("Code", "Name", "Class", "Retriable", "Stale", "Meaning"), rows)


def metrics() -> Iterator[str]:
    """Write the page of the metrics."""
    yield "# Metrics"
    yield ""
    yield (
        "A broker has Apache Kafka's metrics under Kafka's names, and serves them to Prometheus on "
        "`metrics.port`: `kafka.server:type=ReplicaManager,name=LeaderCount` becomes "
        "`kafka_server_replicamanager_leadercount`, and a meter's `PerSec` becomes `_total`. A metric with "
        "tags exists once for each of their values, from the first use on."
    )
    yield ""
    rows = (
        (code(one.group), code(one.type), code(one.name), ", ".join(one.tags), one.kind, one.meaning)
        for one in catalogue()
    )
    yield from table(("Group", "Type", "Name", "Tags", "Kind", "Meaning"), rows)
