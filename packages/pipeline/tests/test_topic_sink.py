"""Connections to the topics that a pipeline writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client.config import ClientConfig
from ottla.pipeline.jobs.declaration import Topics
from ottla.pipeline.jobs.declaration_errors import DeclarationError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.topic_sink import TopicSink
from ottla.pipeline.sink.config import SinkConfig

LOGIN = {
    "kafka.Security.Protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "josef",
    "kafka.sasl.password": "secret",
    "kafka.fetch.min.bytes": 9,
    "failOnDataLoss": False,
}


def _source(options: dict[str, Any]) -> Topics:
    return Topics.model_validate({"bootstrap_servers": "there:1", "topics": ["orders"], "options": options})


def _reached(**given: Any) -> ClientConfig:
    """Return the connection options of a sink whose source has a login."""
    declared, source = TopicSink.model_validate({"topic": "dead", **given}), _source(LOGIN)
    assert list(declared.inspect(source)) == []
    return SinkConfig.of(declared.sink_options(source)).producer_config().client


def test_the_brokers_of_the_source_are_reached_as_the_source_reaches_them() -> None:
    found = _reached()
    assert found.bootstrap_servers == "there:1"
    assert (found.security.security_protocol, found.security.sasl_mechanism) == (
        "SASL_PLAINTEXT",
        "SCRAM-SHA-256",
    )
    assert (found.security.sasl_username, found.security.sasl_password) == ("josef", "secret")


def test_options_of_the_sink_win() -> None:
    found = _reached(options={"kafka.SASL.username": "clerk", "kafka.enable.idempotence": True})
    assert (found.security.sasl_username, found.security.sasl_password) == ("clerk", "secret")


@pytest.mark.parametrize(
    "given", [{"bootstrap_servers": "other:1"}, {"options": {"kafka.bootstrap.servers": "other:1"}}]
)
def test_other_brokers_get_no_passwords_of_the_source(given: dict[str, Any]) -> None:
    found = _reached(**given)
    assert (found.bootstrap_servers, found.security.security_protocol) == ("other:1", "PLAINTEXT")
    assert found.security.sasl_password is None


def test_mistakes_of_the_source_are_reported_for_the_source(tmp_path: Path) -> None:
    text = sample_declaration("logs").replace("[parse]", "options.kafka.sasl.password = 'x'\n\n[parse]", 1)
    (tmp_path / "logs.toml").write_text(text)
    with pytest.raises(DeclarationError) as raised:
        read_job(tmp_path / "logs.toml")
    (mistake,) = [each.mistake for each in raised.value.located]
    assert mistake.path == ("source", "options", "kafka.sasl.password")
    assert "security_protocol" in mistake.message or "security.protocol" in mistake.message


def test_two_mistakes_of_the_source_are_said_with_their_lines_and_none_of_the_sink(tmp_path: Path) -> None:
    wrong = "options.startingOffsets = 'latst'\noptions.kafka.security.protocl = 'SSL'\n\n[parse]"
    text = sample_declaration("logs").replace("[parse]", wrong, 1)
    (tmp_path / "logs.toml").write_text(text)
    with pytest.raises(DeclarationError) as raised:
        read_job(tmp_path / "logs.toml")
    first, second = raised.value.located
    begun = text.splitlines().index("options.startingOffsets = 'latst'") + 1
    assert (first.line, first.mistake.where) == (begun, "source.options.startingOffsets")
    assert (second.line, second.mistake.where) == (begun + 1, "source.options.kafka.security.protocl")
    assert "did you mean 'security.protocol'?" in second.mistake.message


def test_settings_that_need_each_other_are_one_mistake() -> None:
    source = _source(LOGIN | {"kafka.Security.Protocol": "SASL_PLAINTXT", "failOnDatLoss": True})
    found = sorted(str(each.path[-1]) for each in source.inspect())
    assert found == ["failOnDatLoss", "kafka.Security.Protocol"]


@pytest.mark.parametrize("read", [{"topics": ["orders", "dead"]}, {"pattern": "de.*"}])
def test_a_dead_letter_topic_that_feeds_its_own_source_is_rejected(read: dict[str, Any]) -> None:
    source = Topics.model_validate({"bootstrap_servers": "there:1", **read})
    assert [each.path for each in TopicSink(topic="dead").inspect(source)] == [("topic",)]
    assert not list(TopicSink(topic="dead", bootstrap_servers="other:1").inspect(source))
    assert not list(TopicSink(topic="lost").inspect(source))


def test_mistakes_of_the_sink_are_reported_for_the_sink() -> None:
    sink = TopicSink.model_validate({"topic": "dead", "options": {"kafka.sasl.mechanism": "NONE"}})
    (mistake,) = sink.inspect(_source(LOGIN))
    assert mistake.path == ("options",)
    assert "must be PLAIN, SCRAM-SHA-256" in mistake.message
