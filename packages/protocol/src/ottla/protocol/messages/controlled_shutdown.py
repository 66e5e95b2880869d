"""A broker asks the controller to move its leaders away."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, message, string


@message(api_key=7, versions=(0, 3), flexible_from=3)
class ControlledShutdownRequest(Message):
    """Announces that a broker wants to stop.

    Version 0 travels without a client id in its header; 1 is ordinary; 2 adds the broker epoch (KIP-380).
    """

    broker_id: int = int32()
    broker_epoch: int = int64(-1, since=2, ignorable=True)


class RemainingPartition(Struct):
    topic_name: str = string()
    partition_index: int = int32()


@message(api_key=7, versions=(0, 3), flexible_from=3)
class ControlledShutdownResponse(Message):
    """Lists the partitions the broker still leads."""

    error_code: int = int16()
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition)
