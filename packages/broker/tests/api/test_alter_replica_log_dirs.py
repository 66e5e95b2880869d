"""AlterReplicaLogDirs with long lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ottla.broker.api import alter_replica_log_dirs
from ottla.broker.api.group_testing import context_of
from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.replication.log_moves import LogMoves
from ottla.broker.replication.replicas import Replicas
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)


@dataclass
class Moving:
    """The parts that AlterReplicaLogDirs uses."""

    log_moves: LogMoves


async def test_a_request_that_names_many_topics_is_answered_in_steps(tmp_path: Path) -> None:
    environment = Environment()
    logs = LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), environment)
    topics = [AlterReplicaLogDirTopic(name=f"t{number}", partitions=[0]) for number in range(1_000)]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(tmp_path), topics=topics)])
    context = context_of(AlterReplicaLogDirsRequest, 1)
    async with logs:
        replicas = Replicas(
            broker_id=1,
            config=logs.config,
            environment=environment,
            logs=logs,
            log_config=lambda _: LogConfig(),
        )
        moving = Moving(LogMoves(logs, replicas, lambda: 1_000))

        answer = await alter_replica_log_dirs.handle(moving, request, context)

    codes = {partition.error_code for topic in answer.results for partition in topic.partitions}
    assert (len(answer.results), codes) == (1_000, {ErrorCode.REPLICA_NOT_AVAILABLE})
    assert context.turn.steps == 2_000, "each partition and each topic of the answer is a step"
