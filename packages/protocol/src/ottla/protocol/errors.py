"""Kafka's errors: code, class, and what a client may do about each.

The classes below are the table: every one carries its code, whether the same request may succeed later,
whether the client should refresh its metadata first, and a description. The module has over 500
lines because the table is one: an error has one row, and all rows are in one place.
"""

from __future__ import annotations

from typing import ClassVar

from ottla.protocol.error_codes import ErrorCode as ErrorCode


class KafkaError(Exception):
    """A failure that has one of Kafka's codes.

    Ask the type or `retriable`, not the text. The optional message says what happened; without it the
    error reads as its description.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed when it is sent again."""
    refresh_metadata: ClassVar[bool] = False
    """Whether the client's metadata is out of date."""
    description: ClassVar[str] = ""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.description if message is None else message)
        self.message = message

    def __init_subclass__(cls) -> None:
        """Register the class under its code. A code has one class; subclasses of it share the code."""
        if "code" in cls.__dict__ and _CLASSES.setdefault(cls.code, cls) is not cls:
            raise TypeError(f"{cls.__name__} and {_CLASSES[cls.code].__name__} have the code {cls.code}")


_CLASSES: dict[int, type[KafkaError]] = {}


def error_class(code: int) -> type[KafkaError]:
    """Return the class of a code; UnknownServerError for a code this table lacks."""
    return _CLASSES.get(code, UnknownServerError)


def error_for(code: int, message: str | None = None) -> KafkaError:
    """Return the error of a response's code. Code 0 is no error and raises ValueError."""
    if code == ErrorCode.NONE:
        raise ValueError("code 0 means success")
    if code not in _CLASSES:
        return UnknownServerError(f"code {code}" if message is None else f"code {code}: {message}")
    return _CLASSES[code](message)


class UnknownServerError(KafkaError):
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    description = "the broker met an error it did not expect; its log says more"


class OffsetOutOfRange(KafkaError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE
    description = "the offset lies outside what the partition holds"


class CorruptMessage(KafkaError):
    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True
    description = "a record set fails its checksum, has an impossible size or lacks its key"


class UnknownTopicOrPartition(KafkaError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True
    refresh_metadata = True
    description = "the broker has no such partition"


class InvalidFetchSize(KafkaError):
    code = ErrorCode.INVALID_FETCH_SIZE
    description = "the number of bytes to fetch is not valid"


class LeaderNotAvailable(KafkaError):
    code = ErrorCode.LEADER_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True
    description = "the partition has no leader at the moment"


class NotLeaderOrFollower(KafkaError):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True
    refresh_metadata = True
    description = "the broker is not the leader, or no replica, of the partition"


class RequestTimedOut(KafkaError):
    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    description = "the request was not completed in time"


class BrokerNotAvailable(KafkaError):
    code = ErrorCode.BROKER_NOT_AVAILABLE
    description = "the broker is not there"


class ReplicaNotAvailable(KafkaError):
    code = ErrorCode.REPLICA_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True
    description = "the broker has no replica of the partition"


class MessageTooLarge(KafkaError):
    code = ErrorCode.MESSAGE_TOO_LARGE
    description = "a batch is larger than the topic allows"


class StaleControllerEpoch(KafkaError):
    code = ErrorCode.STALE_CONTROLLER_EPOCH
    description = "another controller has been elected since"


class OffsetMetadataTooLarge(KafkaError):
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    description = "the text stored with an offset is too long"


class NetworkException(KafkaError):
    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True
    refresh_metadata = True
    description = "the connection ended before the answer"


class CoordinatorLoadInProgress(KafkaError):
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True
    description = "the coordinator is still reading its state"


class CoordinatorNotAvailable(KafkaError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True
    description = "there is no coordinator at the moment"


class NotCoordinator(KafkaError):
    code = ErrorCode.NOT_COORDINATOR
    retriable = True
    description = "the broker is not the coordinator"


class InvalidTopicException(KafkaError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION
    description = "the topic cannot be used for this, or its name is not legal"


class RecordListTooLarge(KafkaError):
    code = ErrorCode.RECORD_LIST_TOO_LARGE
    description = "a record set is larger than a segment"


class NotEnoughReplicas(KafkaError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True
    description = "fewer replicas are in sync than min.insync.replicas asks for; nothing was written"


class NotEnoughReplicasAfterAppend(KafkaError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    retriable = True
    description = "the records are written, but fewer replicas are in sync than min.insync.replicas asks for"


class InvalidRequiredAcks(KafkaError):
    code = ErrorCode.INVALID_REQUIRED_ACKS
    description = "acks must be 0, 1 or -1"


class IllegalGeneration(KafkaError):
    code = ErrorCode.ILLEGAL_GENERATION
    description = "the group is in another generation"


class InconsistentGroupProtocol(KafkaError):
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    description = "the member shares no protocol with the group"


class InvalidGroupId(KafkaError):
    code = ErrorCode.INVALID_GROUP_ID
    description = "the group id is not valid"


class UnknownMemberId(KafkaError):
    code = ErrorCode.UNKNOWN_MEMBER_ID
    description = "the group has no such member"


class InvalidSessionTimeout(KafkaError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT
    description = "the session timeout lies outside the broker's bounds"


class RebalanceInProgress(KafkaError):
    code = ErrorCode.REBALANCE_IN_PROGRESS
    description = "the group is rebalancing; the member must join again"


class InvalidCommitOffsetSize(KafkaError):
    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    description = "what is committed is too large to be stored"


class TopicAuthorizationFailed(KafkaError):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    description = "not permitted for the topic"


class GroupAuthorizationFailed(KafkaError):
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    description = "not permitted for the group"


class ClusterAuthorizationFailed(KafkaError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    description = "not permitted for the cluster"


class InvalidTimestamp(KafkaError):
    code = ErrorCode.INVALID_TIMESTAMP
    description = "a timestamp is too far from the broker's clock"


class UnsupportedSaslMechanism(KafkaError):
    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    description = "the broker does not offer the SASL mechanism"


class IllegalSaslState(KafkaError):
    code = ErrorCode.ILLEGAL_SASL_STATE
    description = "the request does not fit the state of the SASL exchange"


class UnsupportedVersion(KafkaError):
    code = ErrorCode.UNSUPPORTED_VERSION
    description = "the broker does not serve this version of the API"


class TopicAlreadyExists(KafkaError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS
    description = "the topic exists"


class InvalidPartitions(KafkaError):
    code = ErrorCode.INVALID_PARTITIONS
    description = "the number of partitions is not valid"


class InvalidReplicationFactor(KafkaError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR
    description = "the replication factor is below 1 or above the number of brokers"


class InvalidReplicaAssignment(KafkaError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    description = "the list of replicas is not valid"


class InvalidConfig(KafkaError):
    code = ErrorCode.INVALID_CONFIG
    description = "a configuration value is not valid"


class NotController(KafkaError):
    code = ErrorCode.NOT_CONTROLLER
    retriable = True
    description = "the broker is not the controller"


class InvalidRequest(KafkaError):
    code = ErrorCode.INVALID_REQUEST
    description = "the request contradicts itself or its version"


class UnsupportedForMessageFormat(KafkaError):
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    description = "the topic's message format does not allow this"


class PolicyViolation(KafkaError):
    code = ErrorCode.POLICY_VIOLATION
    description = "a policy of the cluster forbids this"


class OutOfOrderSequenceNumber(KafkaError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    description = "the producer's sequence has a gap"


class DuplicateSequenceNumber(KafkaError):
    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    description = "the batch was written before"


class InvalidProducerEpoch(KafkaError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    description = "the producer's epoch is over"


class InvalidTxnState(KafkaError):
    code = ErrorCode.INVALID_TXN_STATE
    description = "the transaction is in no state for this"


class InvalidProducerIdMapping(KafkaError):
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    description = "the transactional id belongs to another producer id"


class InvalidTransactionTimeout(KafkaError):
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    description = "the transaction timeout is above the broker's bound"


class ConcurrentTransactions(KafkaError):
    code = ErrorCode.CONCURRENT_TRANSACTIONS
    retriable = True
    description = "the previous step of the transaction is not finished"


class TransactionCoordinatorFenced(KafkaError):
    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    description = "another broker coordinates the transaction by now"


class TransactionalIdAuthorizationFailed(KafkaError):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    description = "not permitted for the transactional id"


class SecurityDisabled(KafkaError):
    code = ErrorCode.SECURITY_DISABLED
    description = "the broker has no authorizer"


class OperationNotAttempted(KafkaError):
    code = ErrorCode.OPERATION_NOT_ATTEMPTED
    description = "not tried, because another part of the request failed"


class KafkaStorageError(KafkaError):
    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True
    refresh_metadata = True
    description = "the broker cannot read or write the partition's directory"


class LogDirNotFound(KafkaError):
    code = ErrorCode.LOG_DIR_NOT_FOUND
    description = "the broker has no such log directory"


class SaslAuthenticationFailed(KafkaError):
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    description = "the credentials were refused"


class UnknownProducerId(KafkaError):
    code = ErrorCode.UNKNOWN_PRODUCER_ID
    description = "the partition knows nothing of the producer, whose records may be gone"


class ReassignmentInProgress(KafkaError):
    code = ErrorCode.REASSIGNMENT_IN_PROGRESS
    description = "the partition is being moved"


class DelegationTokenAuthDisabled(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    description = "delegation tokens are switched off: the brokers have no delegation.token.secret.key"


class DelegationTokenNotFound(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    description = "there is no such delegation token"


class DelegationTokenOwnerMismatch(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    description = "the token belongs to somebody else"


class DelegationTokenRequestNotAllowed(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    description = "delegation tokens cannot be asked for on this kind of connection"


class DelegationTokenAuthorizationFailed(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    description = "not permitted for the delegation token"


class DelegationTokenExpired(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_EXPIRED
    description = "the delegation token is over"


class InvalidPrincipalType(KafkaError):
    code = ErrorCode.INVALID_PRINCIPAL_TYPE
    description = "the type of principal is not supported"


class NonEmptyGroup(KafkaError):
    code = ErrorCode.NON_EMPTY_GROUP
    description = "the group has members"


class GroupIdNotFound(KafkaError):
    code = ErrorCode.GROUP_ID_NOT_FOUND
    description = "there is no such group"


class FetchSessionIdNotFound(KafkaError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    retriable = True
    description = "the broker has no such fetch session"


class InvalidFetchSessionEpoch(KafkaError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True
    description = "the fetch session is at another epoch"


class ListenerNotFound(KafkaError):
    code = ErrorCode.LISTENER_NOT_FOUND
    retriable = True
    refresh_metadata = True
    description = "the leader has no listener of the name used here"


class TopicDeletionDisabled(KafkaError):
    code = ErrorCode.TOPIC_DELETION_DISABLED
    description = "topics cannot be deleted: delete.topic.enable is false"


class FencedLeaderEpoch(KafkaError):
    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True
    refresh_metadata = True
    description = "the request's leader epoch is older than the broker's"


class UnknownLeaderEpoch(KafkaError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True
    description = "the request's leader epoch is newer than the broker's"


class UnsupportedCompressionType(KafkaError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    description = "the version of the request does not allow the compression"


class StaleBrokerEpoch(KafkaError):
    code = ErrorCode.STALE_BROKER_EPOCH
    description = "the broker has registered anew since"


class OffsetNotAvailable(KafkaError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True
    description = "a new leader does not know yet how far its partition is committed"


class MemberIdRequired(KafkaError):
    code = ErrorCode.MEMBER_ID_REQUIRED
    description = "the member must join again with the id it was given now"


class PreferredLeaderNotAvailable(KafkaError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True
    description = "the preferred leader is not there or not in sync"


class GroupMaxSizeReached(KafkaError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED
    description = "the group has as many members as it may"


class FencedInstanceId(KafkaError):
    code = ErrorCode.FENCED_INSTANCE_ID
    description = "another member uses the group.instance.id by now"


class EligibleLeadersNotAvailable(KafkaError):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True
    description = "no replica may become leader"


class ElectionNotNeeded(KafkaError):
    code = ErrorCode.ELECTION_NOT_NEEDED
    retriable = True
    refresh_metadata = True
    description = "the partition has the leader already"


class NoReassignmentInProgress(KafkaError):
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    description = "the partition is not being moved"


class GroupSubscribedToTopic(KafkaError):
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    description = "the group still reads the topic"


class InvalidRecord(KafkaError):
    code = ErrorCode.INVALID_RECORD
    description = "the broker refuses a record"


class UnstableOffsetCommit(KafkaError):
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    retriable = True
    description = "a transaction that commits the offset is still open"


class ThrottlingQuotaExceeded(KafkaError):
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    retriable = True
    description = "a quota is used up"


class ProducerFenced(KafkaError):
    code = ErrorCode.PRODUCER_FENCED
    description = "a newer producer uses the transactional id"


class ResourceNotFound(KafkaError):
    code = ErrorCode.RESOURCE_NOT_FOUND
    description = "there is no such resource"


class DuplicateResource(KafkaError):
    code = ErrorCode.DUPLICATE_RESOURCE
    description = "the request names a resource twice"


class UnacceptableCredential(KafkaError):
    code = ErrorCode.UNACCEPTABLE_CREDENTIAL
    description = "the credential does not meet the rules"


class InconsistentVoterSet(KafkaError):
    code = ErrorCode.INCONSISTENT_VOTER_SET
    description = "sender or receiver is not among the voters"


class InvalidUpdateVersion(KafkaError):
    code = ErrorCode.INVALID_UPDATE_VERSION
    description = "the version to change to is not valid"


class FeatureUpdateFailed(KafkaError):
    code = ErrorCode.FEATURE_UPDATE_FAILED
    description = "the features could not be changed"


class PrincipalDeserializationFailure(KafkaError):
    code = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    description = "a forwarded principal cannot be read"


class SnapshotNotFound(KafkaError):
    code = ErrorCode.SNAPSHOT_NOT_FOUND
    description = "there is no such snapshot"


class PositionOutOfRange(KafkaError):
    code = ErrorCode.POSITION_OUT_OF_RANGE
    description = "the position lies outside the snapshot"


class UnknownTopicId(KafkaError):
    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True
    refresh_metadata = True
    description = "the broker has no topic of that id"


class DuplicateBrokerRegistration(KafkaError):
    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    description = "another broker uses the id"


class BrokerIdNotRegistered(KafkaError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED
    description = "no broker of that id is registered"


class InconsistentTopicId(KafkaError):
    code = ErrorCode.INCONSISTENT_TOPIC_ID
    retriable = True
    refresh_metadata = True
    description = "the topic has another id in the log"


class InconsistentClusterId(KafkaError):
    code = ErrorCode.INCONSISTENT_CLUSTER_ID
    description = "the request is meant for another cluster"


class TransactionalIdNotFound(KafkaError):
    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    description = "there is no such transactional id"


class FetchSessionTopicIdError(KafkaError):
    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    retriable = True
    description = "the fetch session mixes requests with and without topic ids"


class IneligibleReplica(KafkaError):
    code = ErrorCode.INELIGIBLE_REPLICA
    description = "a proposed member of the ISR may not be in it"


class NewLeaderElected(KafkaError):
    code = ErrorCode.NEW_LEADER_ELECTED
    description = "the change was made, and another replica leads now"


class OffsetMovedToTieredStorage(KafkaError):
    code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    description = "the offset is in tiered storage"


class FencedMemberEpoch(KafkaError):
    code = ErrorCode.FENCED_MEMBER_EPOCH
    description = "the member's epoch is over; it must give up its partitions and join again"


class UnreleasedInstanceId(KafkaError):
    code = ErrorCode.UNRELEASED_INSTANCE_ID
    description = "another member still uses the instance id"


class UnsupportedAssignor(KafkaError):
    code = ErrorCode.UNSUPPORTED_ASSIGNOR
    description = "the group does not support the assignor"


class StaleMemberEpoch(KafkaError):
    code = ErrorCode.STALE_MEMBER_EPOCH
    description = "the member has a newer epoch, which its next heartbeat tells"


class MismatchedEndpointType(KafkaError):
    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
    description = "the request went to a broker instead of a controller, or the reverse"


class UnsupportedEndpointType(KafkaError):
    code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    description = "the type of endpoint is not supported"


class UnknownControllerId(KafkaError):
    code = ErrorCode.UNKNOWN_CONTROLLER_ID
    description = "there is no controller of that id"


class UnknownSubscriptionId(KafkaError):
    code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    description = "the telemetry subscription is not valid any more"


class TelemetryTooLarge(KafkaError):
    code = ErrorCode.TELEMETRY_TOO_LARGE
    description = "the telemetry is larger than the broker allows"


class InvalidRegistration(KafkaError):
    code = ErrorCode.INVALID_REGISTRATION
    description = "the controller refuses the broker's registration"


class TransactionAbortable(KafkaError):
    code = ErrorCode.TRANSACTION_ABORTABLE
    description = "the transaction cannot go on, but can be aborted"


class InvalidRecordState(KafkaError):
    code = ErrorCode.INVALID_RECORD_STATE
    description = "the record is in no state to be acknowledged"


class ShareSessionNotFound(KafkaError):
    code = ErrorCode.SHARE_SESSION_NOT_FOUND
    retriable = True
    description = "the broker has no such share session"


class InvalidShareSessionEpoch(KafkaError):
    code = ErrorCode.INVALID_SHARE_SESSION_EPOCH
    retriable = True
    description = "the share session is at another epoch"


class FencedStateEpoch(KafkaError):
    code = ErrorCode.FENCED_STATE_EPOCH
    description = "the share group's state is at another epoch"


class InvalidVoterKey(KafkaError):
    code = ErrorCode.INVALID_VOTER_KEY
    description = "the voter has another key"


class DuplicateVoter(KafkaError):
    code = ErrorCode.DUPLICATE_VOTER
    description = "the voter is in the set already"


class VoterNotFound(KafkaError):
    code = ErrorCode.VOTER_NOT_FOUND
    description = "the voter is not in the set"


class InvalidRegularExpression(KafkaError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION
    description = "the regular expression is not valid"


class RebootstrapRequired(KafkaError):
    code = ErrorCode.REBOOTSTRAP_REQUIRED
    description = "what the client knows is outdated; it must start from its bootstrap servers"


class StreamsInvalidTopology(KafkaError):
    code = ErrorCode.STREAMS_INVALID_TOPOLOGY
    description = "the topology of the streams application is not valid"


class StreamsInvalidTopologyEpoch(KafkaError):
    code = ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH
    description = "the epoch of the topology is not valid"


class StreamsTopologyFenced(KafkaError):
    code = ErrorCode.STREAMS_TOPOLOGY_FENCED
    description = "the group has a newer topology"


class ShareSessionLimitReached(KafkaError):
    code = ErrorCode.SHARE_SESSION_LIMIT_REACHED
    retriable = True
    description = "the broker has as many share sessions as it may"


class GroupDeletionFailed(KafkaError):
    code = ErrorCode.GROUP_DELETION_FAILED
    description = "the group could not be deleted"


class StreamsTopologyDescriptionUpdateFailed(KafkaError):
    code = ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
    description = "the description of the topology could not be stored"


class ControllerIdNotRegistered(KafkaError):
    code = ErrorCode.CONTROLLER_ID_NOT_REGISTERED
    description = "no controller of that id is registered"
