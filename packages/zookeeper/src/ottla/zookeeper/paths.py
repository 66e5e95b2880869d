"""Kafka's paths in ZooKeeper, and the ACLs of znodes under `zookeeper.set.acl`.

Every function that takes a name checks it, so a name from a znode or a request never becomes a path
unchecked.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha1
from urllib.parse import quote, unquote

from ottla.zookeeper.errors import IllegalName
from ottla.zookeeper.session import ALL_PERMISSIONS, OPEN_ACL, READ_PERMISSION, Acl

BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
BROKER_SEQUENCE_ID = "/brokers/seqid"
CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_TYPES = ("topics", "clients", "users", "brokers", "ips")
CONSUMERS = "/consumers"
ADMIN = "/admin"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
LATEST_PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
KAFKA_ACL = "/kafka-acl"
KAFKA_ACL_EXTENDED = "/kafka-acl-extended"
KAFKA_ACL_CHANGES = "/kafka-acl-changes"
KAFKA_ACL_EXTENDED_CHANGES = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX = "acl_changes_"
DELEGATION_TOKEN = "/delegation_token"
DELEGATION_TOKENS = "/delegation_token/tokens"
DELEGATION_TOKEN_CHANGES = "/delegation_token/token_changes"
DELEGATION_TOKEN_CHANGE_PREFIX = f"{DELEGATION_TOKEN_CHANGES}/token_change_"
OTTLA = "/ottla"
"""The root of what Apache Kafka has no znode for."""
OTTLA_UNKNOWN_USERS = "/ottla/security/unknown_users"
"""The secret from which brokers derive the salts of users that do not exist."""
OTTLA_TOPIC_SETTINGS = "/ottla/config/topics"
OTTLA_CLIENT_METRICS = "/ottla/client_metrics"
OTTLA_GROUP_SETTINGS = "/ottla/config/groups"
OTTLA_CONFIG_CHANGES = "/ottla/config/changes"
"""Announcements of settings of groups: a broker of Apache Kafka 3.9 does not know them."""
OTTLA_CONFIG_CHANGE_PREFIX = f"{OTTLA_CONFIG_CHANGES}/change_"
OTTLA_FEATURES = "/ottla/features"
"""The feature levels: a broker of Apache Kafka 3.9 exits when `/feature` has one that it does not know."""
CREDENTIALS = "/ottla/credentials"
"""An ephemeral znode of each live broker with credentials for ZooKeeper, whose ACL has its identities."""

PERSISTENT_ROOTS = (
    CONSUMERS,
    BROKER_IDS,
    BROKER_TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGE_NOTIFICATION,
    LATEST_PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    *(f"{CONFIG}/{entity_type}" for entity_type in CONFIG_TYPES),
)
"""Paths that a broker creates at its start, parents included."""

SECURE_ROOTS = (
    ADMIN, BROKERS, CLUSTER, CONFIG, CONTROLLER, CONTROLLER_EPOCH, ISR_CHANGE_NOTIFICATION,
    LATEST_PRODUCER_ID_BLOCK, LOG_DIR_EVENT_NOTIFICATION, DELEGATION_TOKEN, KAFKA_ACL, KAFKA_ACL_EXTENDED,
    KAFKA_ACL_CHANGES, f"{KAFKA_ACL_EXTENDED}-changes", "/migration", FEATURE, OTTLA,
)  # fmt: skip
"""The roots whose znodes only brokers change: those of Apache Kafka's migration tool, and Ottla's own."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_SEQUENCE = re.compile(r"(-?\d{10,})\Z")

CREATOR_ALL: tuple[Acl, ...] = (Acl(ALL_PERMISSIONS, "auth", ""),)
CREATOR_ALL_WORLD_READ: tuple[Acl, ...] = (*CREATOR_ALL, Acl(READ_PERMISSION, "world", "anyone"))

SENSITIVE = (
    f"{CONFIG}/users",
    f"{CONFIG}/brokers",
    f"{DELEGATION_TOKEN}/tokens",
    OTTLA_UNKNOWN_USERS,
)
"""Znodes below these paths hold secrets: only brokers may read them."""


def why_illegal_path(path: str) -> str | None:
    """Return why ZooKeeper would reject `path`, or None for a legal path."""
    if not path.startswith("/"):
        return "a path starts with /"
    if path == "/":
        return None
    for step in path[1:].split("/"):
        if not step:
            return "a path has no empty step"
        if step in (".", ".."):
            return "a path is not relative"
    if _UNPRINTABLE.search(path):
        return "a path has no control, surrogate or private characters"
    return None


def parent_of(path: str) -> str:
    """Return the path of the parent; the root is its own parent."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """Return the last component of `path`."""
    return path.rpartition("/")[2]


def segment(name: str) -> str:
    """Return `name` if it can be a component of a path; raises IllegalName otherwise."""
    if not name or name in (".", "..") or "/" in name or _UNPRINTABLE.search(name):
        raise IllegalName("", f"{name!r} cannot be a component of a path")
    return name


def topic_segment(topic: str) -> str:
    """Return `topic` if Kafka allows the name; raises IllegalName otherwise."""
    if not _LEGAL_TOPIC.match(topic) or topic in (".", ".."):
        raise IllegalName("", f"{topic!r} cannot be a topic name")
    return topic


def number_segment(number: int, what: str = "number") -> str:
    """Return a broker id or partition as a component of a path; raises IllegalName if negative."""
    if number < 0:
        raise IllegalName("", f"{what} {number} is negative")
    return str(number)


def sequence_of(path: str) -> int:
    """Return the number ZooKeeper appended to a sequential znode's path or name."""
    match = _SEQUENCE.search(path)
    if match is None:
        raise IllegalName(path, "does not end in a sequence number")
    return int(match[1][-10:]) if match[1][0] != "-" else int(match[1])


def sanitized(name: str) -> str:
    """Encode a user, client id or IP as Kafka does for a component of a path."""
    return segment(quote(name, safe="~"))


def desanitized(step: str) -> str:
    """Undo `sanitized`."""
    return unquote(step)


# -- brokers and topics


def broker(broker_id: int) -> str:
    """The ephemeral registration of a broker; its czxid is the broker epoch."""
    return f"{BROKER_IDS}/{number_segment(broker_id, 'broker id')}"


def topic(name: str) -> str:
    """The replica assignment of a topic."""
    return f"{BROKER_TOPICS}/{topic_segment(name)}"


def partitions(topic_name: str) -> str:
    """The parent of a topic's partitions."""
    return f"{topic(topic_name)}/partitions"


def partition(topic_name: str, number: int) -> str:
    """One partition; its state is the child `state`."""
    return f"{partitions(topic_name)}/{number_segment(number, 'partition')}"


def partition_state(topic_name: str, number: int) -> str:
    """Leader and ISR of a partition; its version is the partition epoch."""
    return f"{partition(topic_name, number)}/state"


# -- admin and configuration


def deleted_topic(name: str) -> str:
    """The marker that asks the controller to delete a topic."""
    return f"{DELETE_TOPICS}/{topic_segment(name)}"


def config_entity(entity_type: str, name: str) -> str:
    """The configuration overrides of one topic, broker, client, user or IP (`name` already sanitized)."""
    if entity_type not in CONFIG_TYPES:
        raise IllegalName("", f"{entity_type!r} is not a type of configuration entity")
    return f"{CONFIG}/{entity_type}/{segment(name)}"


def ottla_topic_settings(name: str) -> str:
    """The overrides of a topic's keys that Apache Kafka does not know."""
    return f"{OTTLA_TOPIC_SETTINGS}/{topic_segment(name)}"


def ottla_group_settings(sanitized: str) -> str:
    """The settings of a group, whose id is URL-encoded."""
    return f"{OTTLA_GROUP_SETTINGS}/{segment(sanitized)}"


def delegation_token(token_id: str) -> str:
    """One delegation token."""
    return f"{DELEGATION_TOKENS}/{segment(token_id)}"


def user_client_config(user: str, client: str) -> str:
    """The overrides of one client id of one user (both already sanitized)."""
    return f"{config_entity('users', user)}/clients/{segment(client)}"


def config_of(entity_path: str) -> str:
    """The configuration znode that a change notification's `entity_path` names."""
    match entity_path.split("/"):
        case [entity_type, name]:
            return config_entity(entity_type, name)
        case ["users", user, "clients", client]:
            return user_client_config(user, client)
    raise IllegalName("", f"{entity_path!r} names no configuration entity")


CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX = f"{ISR_CHANGE_NOTIFICATION}/isr_change_"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_"


# -- rules of the authorizer


def acls_of_type(is_prefixed: bool, resource_type: str) -> str:
    """The parent of the rules for one type of resource (`Topic`), by pattern type."""
    top = f"{KAFKA_ACL_EXTENDED}/prefixed" if is_prefixed else KAFKA_ACL
    return f"{top}/{segment(resource_type)}"


def acls(is_prefixed: bool, resource_type: str, name: str) -> str:
    """The rules for one pattern of resources."""
    return f"{acls_of_type(is_prefixed, resource_type)}/{segment(name)}"


def acl_changes(is_prefixed: bool) -> str:
    """The parent of the notifications of changed rules, by pattern type."""
    return KAFKA_ACL_EXTENDED_CHANGES if is_prefixed else KAFKA_ACL_CHANGES


# -- consumers that use ZooKeeper


def consumer_ids(group: str) -> str:
    """The parent of the live members of a group."""
    return f"{CONSUMERS}/{segment(group)}/ids"


def consumer_id(group: str, member: str) -> str:
    """The ephemeral registration of one member."""
    return f"{consumer_ids(group)}/{segment(member)}"


def consumer_owner(group: str, topic_name: str, number: int) -> str:
    """The ephemeral claim of one partition."""
    return f"{_consumer_topic(group, 'owners', topic_name)}/{number_segment(number, 'partition')}"


def consumer_offset(group: str, topic_name: str, number: int) -> str:
    """The committed offset of one partition."""
    return f"{_consumer_topic(group, 'offsets', topic_name)}/{number_segment(number, 'partition')}"


def _consumer_topic(group: str, what: str, topic_name: str) -> str:
    return f"{CONSUMERS}/{segment(group)}/{what}/{topic_segment(topic_name)}"


# -- ACLs


def digest_identity(credentials: bytes) -> str:
    """Return the identity in ACLs of `user:password` in the scheme `digest`."""
    user = credentials.partition(b":")[0].decode(errors="replace")
    return f"{user}:{b64encode(sha1(credentials).digest()).decode()}"


def is_sensitive(path: str) -> bool:
    """Whether a znode may hold secrets."""
    return _below(path, SENSITIVE)


def secure_acl(path: str) -> tuple[Acl, ...]:
    """Return the ACL of a new znode: all permissions for its creator, read permission for the world.

    Below `SENSITIVE` the world may not read; below `/consumers` everyone may write, because old consumers
    register and commit there. The session needs credentials.
    """
    if _below(path, (CONSUMERS,)):
        return OPEN_ACL
    return CREATOR_ALL if is_sensitive(path) else CREATOR_ALL_WORLD_READ


def _below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)
