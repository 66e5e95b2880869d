"""The plan of a cluster over hosts."""

from __future__ import annotations

import pytest

from ottla.tools.cluster_of_hosts.plan import HostsPlan, MalformedHosts, parse_hosts
from ottla.tools.cluster_of_hosts.startup import Ssh

TEXT = "# ours\nkafka@a.example:2222 brokers=2\n\nb.example address=10.0.0.2\nc.example\nd.example\n"


def test_each_host_has_its_ids_its_rack_and_its_ports() -> None:
    plan = HostsPlan(
        hosts=parse_hosts(TEXT), directory="/data", base_port=100, settings={"num.partitions": "6"}
    )

    first, second, *_ = plan.hosts

    assert plan.broker_ids == [101, 102, 201, 301, 401]
    assert plan.bootstrap_servers == "a.example:100,10.0.0.2:100,c.example:100,d.example:100"
    assert plan.zookeeper_connect == "a.example:2181,10.0.0.2:2181,c.example:2181"
    settings = plan.broker_settings(first, 102, "/data/broker-102")
    assert settings["listeners"] == "PLAINTEXT://a.example:101"
    assert (settings["broker.rack"], settings["num.partitions"]) == ("a.example", "6")
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == ("3", "2")
    assert "server.2=10.0.0.2:2182:2183\n" in plan.zookeeper_config(second, "/data/zookeeper-2")
    assert HostsPlan.decode(plan.encode()) == plan


def test_two_hosts_have_one_zookeeper_server_and_two_replicas() -> None:
    plan = HostsPlan(hosts=parse_hosts("a\nb\n"), directory="/data")

    assert plan.zookeeper_connect == "a:2181"
    assert "server." not in plan.zookeeper_config(plan.hosts[0], "/data/zookeeper-1")
    settings = plan.broker_settings(plan.hosts[1], 201, "/data/broker-201")
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == ("2", "1")


def test_a_host_is_named_to_ssh_after_the_options() -> None:
    host = parse_hosts(TEXT)[0]

    command = Ssh(("IdentityFile=/k y",), "/opt/o t/python").command(host, ["check"])

    assert command[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert command[-6:-1] == ["IdentityFile=/k y", "-p", "2222", "--", "kafka@a.example"]
    assert command[-1] == "'/opt/o t/python' -m ottla.tools.cluster_of_hosts.on_host 1 check"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "no host is named"),
        ("# all away\n", "no host is named"),
        ("a\n-oProxyCommand=x\n", "line 2: '-oProxyCommand=x' is not [user@]host"),
        ("a brokers=0", "line 1: brokers=0 is not from 1 to 99"),
        ("a brokers=many", "line 1: brokers=many is not from 1 to 99"),
        ("a rack=1", "line 1: rack is not an option of a host"),
        ("a\nb\nx@a\n", "line 3: a is named twice"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(text: str, advice: str) -> None:
    with pytest.raises(MalformedHosts) as caught:
        parse_hosts(text)

    assert str(caught.value).startswith(advice)


@pytest.mark.parametrize(("base_port", "zookeeper_port"), [(2180, 2181), (2183, 2181), (65_535, 2181)])
def test_ports_that_meet_are_refused(base_port: int, zookeeper_port: int) -> None:
    with pytest.raises(MalformedHosts, match="choose"):
        HostsPlan(
            hosts=parse_hosts(TEXT), directory="/data", base_port=base_port, zookeeper_port=zookeeper_port
        )
