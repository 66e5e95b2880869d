"""Pipelines and Spark's data sources take brokers and logins of profiles, and show no secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.pipeline.cli import pipeline
from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.declaration import Target, Topics
from ottla.pipeline.jobs.mirroring.mirror_declaration import MirrorDeclaration
from ottla.pipeline.jobs.mirroring.offset_mapping import OffsetMapping
from ottla.pipeline.jobs.mirroring.spark_task import Task
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.topic_sink import TopicSink
from ottla.pipeline.options import checkable
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.source.config import SourceConfig

PROFILES = """
[production]
bootstrap_servers = "there:9093"
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "josef"
sasl_password = { file = "password" }
request_timeout_ms = 5000

[sealed]
bootstrap_servers = "sealed:9093"
security_protocol = "SASL_PLAINTEXT"
sasl_username = "josef"
sasl_password = { command = "exit 3" }

[nowhere]
client_id = "shop"
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles.toml").write_text(PROFILES)
    (tmp_path / "password").write_text("hush hush\n")
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.delenv("OTTLA_PROFILE", raising=False)


def call(*words: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(pipeline, list(words))


def declared(folder: Path, *connection: str) -> str:
    text = sample_declaration("logs").replace('bootstrap_servers = "127.0.0.1:9092"', "\n".join(connection))
    (folder / "logs.toml").write_text(text)
    return str(folder / "logs.toml")


def test_a_source_takes_brokers_and_login_of_a_profile_and_shows_no_secret() -> None:
    found = SourceConfig.of({"Profile": "production", "subscribe": "orders"}, streaming=False)

    client = pickle.loads(pickle.dumps(found)).consumer_config().client
    assert (client.bootstrap_servers, client.request_timeout_ms) == ("there:9093", 5_000)
    assert (client.security.sasl_username, client.security.sasl_password) == ("josef", "hush hush")
    assert "hush" not in repr(found)


def test_options_of_the_client_win_over_the_profile() -> None:
    given = {"profile": "production", "kafka.bootstrap.servers": "here:1", "kafka.sasl.username": "anna"}

    client = SinkConfig.of(given).producer_config().client

    assert (client.bootstrap_servers, client.security.sasl_username) == ("here:1", "anna")
    assert client.security.sasl_password == "hush hush"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lost", "option 'profile': .* has no profile 'lost': it has nowhere, production, sealed"),
        ("sealed", "option 'profile': profile 'sealed', sasl_password: the command 'exit 3'"),
        ("nowhere", "option 'kafka.bootstrap.servers' is missing"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        SinkConfig.of({"profile": name})
    assert "\n" not in str(caught.value)


def test_declarations_with_profiles_are_checked_without_reading_secrets(tmp_path: Path) -> None:
    wrong = call("check", declared(tmp_path, 'profile = "lost"'))
    nowhere = call("check", declared(tmp_path, 'profile = "nowhere"'))
    missing = call("check", declared(tmp_path))
    good = call("check", declared(tmp_path, 'profile = "sealed"'))

    assert "line 8: source.profile: " in wrong.output
    assert "has no profile 'lost'" in wrong.output
    assert "source.bootstrap_servers: is missing in profile 'nowhere', too" in nowhere.output
    assert "source.bootstrap_servers: is missing: bootstrap_servers = " in missing.output
    assert good.output.endswith("access-logs (logs) is valid\n")


def test_a_command_gives_its_profile_to_the_cluster_of_a_declaration(tmp_path: Path) -> None:
    file = declared(tmp_path)

    assert call("check", file, "--profile", "production").exit_code == 0
    assert call("check", file, OTTLA_PROFILE="production").exit_code == 0
    assert call("status", file, OTTLA_PROFILE="production").exit_code == 0


def test_a_command_gives_one_profile_to_one_cluster_only(tmp_path: Path) -> None:
    file = tmp_path / "mirror.toml"
    text = sample_declaration("mirror")
    file.write_text(text)

    refused, left = (
        call("check", str(file), "--profile", "sealed"),
        call("check", str(file), OTTLA_PROFILE="sealed"),
    )

    assert refused.exit_code == 2
    assert "write profile = ... into the table of each" in " ".join(refused.output.split())
    assert left.exit_code == 0, left.output


def test_a_sample_names_the_profile(tmp_path: Path) -> None:
    by_profile = call("sample", "logs", "--declaration", "--profile", "production")
    by_both = call("sample", "logs", "--declaration", "--profile", "production", "-b", "here:1")

    assert 'profile = "production"\n' in by_profile.output
    assert "bootstrap_servers" not in by_profile.output
    assert 'bootstrap_servers = "here:1"\nprofile = "production"\n' in by_both.output


def mirror(**more: Any) -> MirrorDeclaration:
    found = MirrorDeclaration.model_validate(
        {
            "kind": "mirror", "name": "backup", "checkpoint": "state", "engine": "spark",
            "source": {"profile": "production", "topics": ["orders"]},
            "target": {"bootstrap_servers": "b:9092", **more},
        }
    )  # fmt: skip
    assert list(found.inspect()) == []
    return found


def test_the_task_of_a_mirror_names_profiles_only_and_its_reader_has_their_secrets() -> None:
    clusters = mirror().clusters().with_profiles()

    text = Task(clusters, OffsetMapping("backup"), 0).to_option()
    read = Task.from_option(text).clusters

    assert "production" in text
    assert "hush" not in text + repr(clusters) + repr(read)
    for found in (clusters, read):
        client = found.source_config().client
        assert (client.bootstrap_servers, client.security.sasl_password) == ("there:9093", "hush hush")
        assert found.target_client().bootstrap_servers == "b:9092"


def test_a_mirror_into_the_brokers_of_its_source_is_noticed_by_their_profile() -> None:
    with pytest.raises(AssertionError, match="into themselves"):
        mirror(bootstrap_servers="there:9093")


def test_a_target_has_the_login_of_its_profile() -> None:
    target = Target.model_validate({"profile": "production", "options": {"kafka.linger.ms": 5}})

    config = target.producer_config()

    assert list(target.inspect()) == []
    assert (config.linger_ms, config.client.security.sasl_password) == (5, "hush hush")


def test_dead_letters_go_by_the_profile_of_the_source_or_by_their_own() -> None:
    source = Topics.model_validate({"profile": "production", "topics": ["orders"]})
    inherited, own = TopicSink(topic="dead"), TopicSink(topic="orders", profile="sealed")

    assert inherited.sink_options(source)["profile"] == "production"
    assert list(inherited.inspect(source)) == []
    assert checkable(own.sink_options(source))["kafka.bootstrap.servers"] == "sealed:9093"
    assert list(own.inspect(source)) == []
    assert [mistake.path for mistake in TopicSink(topic="orders").inspect(source)] == [("topic",)]
