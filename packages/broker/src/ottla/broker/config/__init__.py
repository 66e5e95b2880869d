"""The typed configuration of the broker and of topics."""

from ottla.broker.config.broker import BrokerConfig
from ottla.broker.config.keys import find_key, keys_of, values_of
from ottla.broker.config.listeners import Listener, parse_listeners
from ottla.broker.config.loading import (
    Loaded,
    broker_config_from,
    check_broker_config,
    load_broker_config,
)
from ottla.broker.config.topic import (
    TOPIC_SYNONYMS,
    LogConfig,
    parse_topic_overrides,
    synonyms_of,
    topic_keys,
)
from ottla.broker.config.unsupported_keys import (
    ALIASES,
    IGNORED,
    IGNORED_PREFIXES,
    SECURITY_KEYS,
    SECURITY_PREFIXES,
    is_known,
    nearest_key,
    why_no_setting,
)
from ottla.client.config_definition import ConfigError, Setting

__all__ = [
    "ALIASES",
    "IGNORED",
    "IGNORED_PREFIXES",
    "SECURITY_KEYS",
    "SECURITY_PREFIXES",
    "TOPIC_SYNONYMS",
    "BrokerConfig",
    "ConfigError",
    "Listener",
    "Loaded",
    "LogConfig",
    "Setting",
    "broker_config_from",
    "check_broker_config",
    "find_key",
    "is_known",
    "keys_of",
    "load_broker_config",
    "nearest_key",
    "parse_listeners",
    "parse_topic_overrides",
    "synonyms_of",
    "topic_keys",
    "values_of",
    "why_no_setting",
]
