"""Create and delete topics, and add partitions to them."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


class CreatableTopicConfig(Struct):
    name: str = string()
    value: str | None = nullable_string()


class CreatableTopic(Struct):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@message(api_key=19, versions=(0, 7), flexible_from=5)
class CreateTopicsRequest(Message):
    """Asks for topics, by count or by explicit replicas.

    Version 1 can merely validate, 4 may leave counts to the broker (KIP-464).
    """

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(60000)
    validate_only: bool = boolean(since=1)


class CreatableTopicConfigs(Struct):
    name: str = string()
    value: str | None = nullable_string()
    read_only: bool = boolean()
    config_source: int = int8(-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Struct):
    name: str = string()
    topic_id: UUID = uuid(since=7, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(since=1, ignorable=True)
    topic_config_error_code: int = int16(since=5, tag=0, ignorable=True)
    num_partitions: int = int32(-1, since=5, ignorable=True)
    replication_factor: int = int16(-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = nullable_array(
        CreatableTopicConfigs, since=5, ignorable=True
    )


@message(api_key=19, versions=(0, 7), flexible_from=5)
class CreateTopicsResponse(Message):
    """Says whether each topic was created.

    Version 5 adds the resulting configuration (KIP-525), 7 the topic id (KIP-516).
    """

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array(int32)


class CreatePartitionsTopic(Struct):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = nullable_array(CreatePartitionsAssignment)


@message(api_key=37, versions=(0, 3), flexible_from=2)
class CreatePartitionsRequest(Message):
    """Raises the number of partitions (KIP-195)."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@message(api_key=37, versions=(0, 3), flexible_from=2)
class CreatePartitionsResponse(Message):
    """Says whether each topic was changed."""

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


class DeleteTopicState(Struct):
    name: str | None = nullable_string(None)
    topic_id: UUID = uuid()


@message(api_key=20, versions=(0, 6), flexible_from=4)
class DeleteTopicsRequest(Message):
    """Deletes topics by name, since version 6 by topic id too (KIP-516)."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(string, until=5, ignorable=True)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = nullable_string(nullable_from=6)
    topic_id: UUID = uuid(since=6, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=5, ignorable=True)


@message(api_key=20, versions=(0, 6), flexible_from=4)
class DeleteTopicsResponse(Message):
    """Says whether each topic is being deleted; version 5 adds a message (KIP-599)."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
