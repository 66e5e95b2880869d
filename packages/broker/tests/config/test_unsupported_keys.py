"""Keys that are not settings here: what is named in a warning, and what refuses the start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.config.environment_keys import OTHER_COMMANDS
from ottla.broker.server.cli import broker
from ottla.broker.testing import BrokerFailed, BrokerThread

pytest_plugins = ["pytester"]

ON_LOOPBACK = {"listeners": "PLAINTEXT://127.0.0.1:9092"}
NOT_THERE = "this protection is not there yet"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("num.network.threads", "3", "one event loop serves the network"),
        ("offsets.commit.required.acks", "-1", "commits wait for all replicas"),
        (
            "fetch.purgatory.purge.interval.requests",
            "7",
            "a request that waits leaves its queue as it ends, so nothing is purged",
        ),
        (
            "quota.producer.default",
            "1024",
            "default quotas are dynamic: kafka-configs --entity-type clients --entity-default",
        ),
        ("remote.log.storage.system.enable", "true", "logs are not kept in remote storage"),
        (
            "listener.name.inside.num.partitions",
            "7",
            "only TLS, logins and connection limits differ by listener (in lower case)",
        ),
        (
            "java.security.auth.login.config",
            "/etc/kafka/jaas.conf",
            "logins are not read from a JAAS file: each module of its section KafkaServer, or "
            "<listener>.KafkaServer, goes into listener.name.<listener>.<mechanism>.sasl.jaas.config",
        ),
        ("zookeeper.set.acl", "false", None),
        ("security.providers", "", NOT_THERE),
    ],
)
def test_a_key_without_effect_is_named_in_a_warning(key: str, value: str, reason: str | None) -> None:
    loaded = load_broker_config({key: value, **ON_LOOPBACK})

    assert loaded.warnings == ((f"{key} has no effect: {reason}",) if reason else ())


def test_an_unknown_key_of_a_file_is_named_with_the_nearest_one() -> None:
    loaded = load_broker_config({"num.partition": "3", "my.plugin.key": "1", **ON_LOOPBACK})

    assert loaded.warnings == (
        "num.partition is not a broker configuration; did you mean num.partitions?",
        "my.plugin.key is not a broker configuration",
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"security.providers": "org.example.Provider"},
        {"alter.config.policy.class.name": "org.example.Policy"},
    ],
)
def test_a_key_that_asks_for_protection_refuses_the_start(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config({**settings, **ON_LOOPBACK})

    assert (
        str(caught.value)
        == f"{', '.join(settings)} must not be set: {NOT_THERE}, so nothing would be protected"
    )


def test_an_unknown_flag_is_refused_with_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"^num\.partition is not .*; did you mean num\.partitions\?$"):
        load_broker_config(flags={"num.partition": "3"})
    with pytest.raises(ConfigError, match=r"^retention\.ms is not .*; did you mean log\.retention\.ms\?$"):
        load_broker_config(flags={"retention.ms": "3"})
    with pytest.raises(ConfigError, match=r"^no\.such\.key is not a broker configuration$"):
        load_broker_config(flags={"no.such.key": "3"})


def test_an_unknown_variable_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(environment={"OTTLA_NUM_PARTITION": "3"})

    assert (
        str(caught.value)
        == "OTTLA_NUM_PARTITION is not a variable of Ottla; did you mean OTTLA_NUM_PARTITIONS?"
    )


def test_an_unknown_variable_is_refused_with_the_nearest_one_of_other_commands() -> None:
    with pytest.raises(ConfigError, match=r"; did you mean OTTLA_BOOTSTRAP_SERVER\?$"):
        load_broker_config(environment={"OTTLA_BOOTSTRAP_SERVERS": "127.0.0.1:9092"})
    with pytest.raises(ConfigError, match=r"; did you mean OTTLA_ZOOKEEPER_CONNECT\?$"):
        load_broker_config(environment={"OTTLA_ZOOKEEPER_CONNEC": "127.0.0.1:2181"})


def test_a_setting_in_place_of_the_file_is_refused_with_the_option_for_it() -> None:
    done = CliRunner().invoke(broker, ["start", "--config", "num.partitions=3"])

    advice = "'num.partitions=3' is a setting and no file: give it with --set num.partitions=3\n"
    assert (done.exit_code, done.output.endswith(advice)) == (2, True)


def test_variables_of_keys_of_other_commands_and_of_kubernetes_are_fine() -> None:
    service = {
        "OTTLA_SERVICE_HOST": "10.0.0.7",
        "OTTLA_SERVICE_PORT_KAFKA": "9092",
        "OTTLA_PORT": "tcp://10.0.0.7:9092",
        "OTTLA_MY_BROKER_PORT_9092_TCP_ADDR": "10.0.0.7",
    }
    loaded = load_broker_config(
        environment={
            **service,
            "OTTLA_BOOTSTRAP_SERVER": "127.0.0.1:9092",
            "OTTLA_ZOOKEEPER": "127.0.0.1:2181",
            "OTTLA_NUM_PARTITIONS": "7",
            "OTTLA_ZOOKEEPER_CLIENTCNXNSOCKET": "x",
        }
    )

    assert loaded.config.num_partitions == 7
    assert str(loaded.config.parsed_listeners[0]) == "PLAINTEXT://127.0.0.1:9092"
    assert loaded.warnings == (
        "zookeeper.clientCnxnSocket has no effect: the ZooKeeper client is not Java's",
    )


def test_the_variables_of_all_commands_are_known() -> None:
    packages = Path(__file__).parents[3]
    read = {
        name
        for path in packages.glob("*/src/**/*.py")
        for name in re.findall(
            r'(?:envvar=|_VARIABLE: Final = )"(OTTLA_\w+)"', path.read_text(encoding="utf-8")
        )
    }

    assert read == OTHER_COMMANDS


def test_a_broker_for_tests_refuses_an_unknown_setting(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerFailed, match=r"num\.partition is not .*; did you mean num\.partitions\?"),
        BrokerThread(tmp_path, {"num.partition": "3"}),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "num_partition=3",
            "*ottla_broker: num_partition is not a broker setting; did you mean num_partitions?*",
        ),
        ("3", "*takes settings by name, not 3*"),
    ],
)
def test_a_marker_refuses_what_is_not_a_setting(
    pytester: pytest.Pytester, arguments: str, words: str
) -> None:
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.ottla_broker({arguments})\ndef test_it(ottla_broker_settings): ..."
    )

    # faulthandler would take away the handler of SIGBUS that mapped indexes have installed in this process.
    ran = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:faulthandler", "-o", "asyncio_default_fixture_loop_scope=function"
    )

    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines([words])
