"""ControllerState, the metric: what kind of event the controller is processing, by Kafka's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from ottla.broker.controller.events import (
    AlterReassignments,
    BalanceLeaders,
    BrokersRead,
    DeletionsGoOn,
    Elected,
    ElectLeaders,
    Event,
    ListReassignments,
    ReplicasFailed,
    ReplyReceived,
    StatesRead,
    TopicsRead,
    UncleanElectionAllowed,
    UpdateFeatures,
)
from ottla.broker.peers.controller_requests import AlterPartition, ControlledShutdown
from ottla.protocol.messages.control_requests import UpdateMetadataResponse


class ControllerState(IntEnum):
    """Kinds of events that the controller processes. It is never in the states whose numbers are missing."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16
    UPDATE_FEATURES = 17


_STATES: Final[Mapping[type[Event], ControllerState]] = {
    Elected: ControllerState.CONTROLLER_CHANGE,
    BrokersRead: ControllerState.BROKER_CHANGE,
    TopicsRead: ControllerState.TOPIC_CHANGE,
    DeletionsGoOn: ControllerState.TOPIC_CHANGE,
    ReplyReceived: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
    ElectLeaders: ControllerState.MANUAL_LEADER_BALANCE,
    UncleanElectionAllowed: ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE,
    ControlledShutdown: ControllerState.CONTROLLED_SHUTDOWN,
    AlterPartition: ControllerState.ISR_CHANGE,
    BalanceLeaders: ControllerState.AUTO_LEADER_BALANCE,
    AlterReassignments: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    ListReassignments: ControllerState.LIST_PARTITION_REASSIGNMENT,
    StatesRead: ControllerState.ISR_CHANGE,
    ReplicasFailed: ControllerState.LOG_DIR_CHANGE,
    UpdateFeatures: ControllerState.UPDATE_FEATURES,
}


def state_in(event: Event) -> ControllerState:
    """The state of a controller that processes this event."""
    if isinstance(event, ReplyReceived) and isinstance(event.response, UpdateMetadataResponse):
        return ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED
    return _STATES[type(event)]
