"""Apache Kafka's own tool moves partitions between our brokers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerCluster
from ottla.client.admin import Admin
from peers.apache_kafka import run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
BOUND_S = 120


async def test_kafkas_tool_moves_partitions_and_verifies_that_they_have_moved(
    ottla_cluster: BrokerCluster, tmp_path: Path
) -> None:
    wanted = {0: [2, 3], 1: [3]}
    moves = [{"topic": "orders", "partition": each, "replicas": to} for each, to in wanted.items()]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    servers = ("--bootstrap-server", ottla_cluster.bootstrap_servers)
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        await admin.topics.create("orders", assignments={0: [1], 1: [2]})

        begun = run_tool(TOOL, *servers, "--reassignment-json-file", str(plan), "--execute")

        assert "Successfully started partition reassignments for orders-0,orders-1" in begun
        deadline_s, verified = time.monotonic() + BOUND_S, ""
        while verified.count("is completed") < len(wanted):
            assert time.monotonic() < deadline_s, verified
            verified = run_tool(TOOL, *servers, "--reassignment-json-file", str(plan), "--verify")
        found = (await admin.topics.describe("orders")).partitions
        assert {each: list(found[each].replicas) for each in wanted} == wanted
