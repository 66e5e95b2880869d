from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf, nan
from typing import Literal

import pytest

from ottla.client.config_definition import (
    INT,
    Check,
    ConfigError,
    Setting,
    SettingError,
    at_least,
    at_most,
    between,
    define,
    documentation,
    each_of,
    is_loopback,
    one_of,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class Example:
    retention_ms: int | None = setting(None, "How long.", at_least(-1), long=True, update="cluster-wide")
    num_partitions: int = setting(1, "How many.", at_least(1))
    cleanup_policy: tuple[str, ...] = setting(("delete",), "What.", each_of("delete", "compact"))
    clean_ratio: float = setting(0.5, "How much.", between(0, 1))
    log_type: str = setting("CreateTime", "Which.", one_of("CreateTime", "LogAppendTime"))
    enable: bool = True
    """Whether at all,
    and how."""
    acks: Literal[0, 1, "all"] = setting("all", synonyms={"-1": "all", None: 0})
    password: str | None = setting(None, is_secret=True)
    extensions: Mapping[str, str] = field(default_factory=dict)


def defined(*, of_broker: bool = True) -> dict[str, Setting]:
    declared = {each.name: each for each in fields(Example)}
    return define(Example, declared, integer=INT) if of_broker else define(Example, declared)


def test_names_types_defaults_and_updates_are_kafkas() -> None:
    shown = [(one.name, one.type, one.nullable, one.update) for one in defined().values()]

    assert shown == [
        ("retention.ms", "long", True, "cluster-wide"),
        ("num.partitions", "int", False, "read-only"),
        ("cleanup.policy", "list", False, "read-only"),
        ("clean.ratio", "double", False, "read-only"),
        ("log.type", "string", False, "read-only"),
        ("enable", "boolean", False, "read-only"),
        ("acks", "string", False, "read-only"),
        ("password", "password", True, "read-only"),
        ("extensions", "string", False, "read-only"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention_ms", " 9223372036854775807 ", 2**63 - 1),
        ("retention_ms", "", None),
        ("retention_ms", None, None),
        ("num_partitions", "7", 7),
        ("cleanup_policy", "compact, delete,", ("compact", "delete")),
        ("clean_ratio", "0.25", 0.25),
        ("enable", "FALSE", False),
        ("acks", "-1", "all"),
        ("acks", "1", 1),
    ],
)
def test_text_is_parsed_into_the_declared_type(name: str, text: str | None, value: object) -> None:
    parsed = defined()[name].parse(text)

    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention_ms", "9223372036854775808", "retention.ms must be a 64-bit integer, not '922337203685"),
        ("retention_ms", "-2", "retention.ms must be at least -1, not '-2'"),
        ("num_partitions", "2147483648", "num.partitions must be a 32-bit integer, not '2147483648'"),
        ("cleanup_policy", "shred", "cleanup.policy must be a list of delete, compact, not 'shred'"),
        ("clean_ratio", "2", "clean.ratio must be between 0 and 1, not '2'"),
        ("log_type", "Now", "log.type must be one of CreateTime, LogAppendTime, not 'Now'"),
        ("log_type", " Now ", "log.type must be one of CreateTime, LogAppendTime, not 'Now'"),
        ("num_partitions", " x ", "num.partitions must be a 32-bit integer, not 'x'"),
        ("enable", "yes", "enable must be true or false, not 'yes'"),
        ("acks", "2", "acks must be 0 or 1 or 'all', not '2'"),
    ],
)
def test_text_that_cannot_be_the_value_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        defined()[name].parse(text)

    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, SettingError)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_partitions", "7", "num_partitions must be a whole number, not '7'"),
        ("num_partitions", True, "num_partitions must be a whole number, not True"),
        ("num_partitions", -1_000, "num_partitions must be at least 1, not -1_000"),
        ("retention_ms", 0.5, "retention_ms must be a 64-bit integer or None, not 0.5"),
        ("enable", 1, "enable must be True or False, not 1"),
        ("acks", True, "acks must be 0 or 1 or 'all', not True"),
        ("password", 5, "password must be text or None, not the value given"),
    ],
)
def test_a_python_value_is_checked_under_the_name_it_was_given_by(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(SettingError) as caught:
        defined(of_broker=False)[name].check(value, name)

    assert str(caught.value) == message


def _is_long(value: str) -> str | None:
    return None if len(value) >= 8 else "must have 8 characters"


@dataclass(frozen=True, kw_only=True)
class Login:
    password: str = setting("changeme", "Which.", _is_long, is_secret=True)
    pin: int = setting(1234, "Which.", at_least(1000), is_secret=True)


@pytest.mark.parametrize(
    ("name", "text", "value", "message"),
    [
        ("password", "hunter2", "hunter2", "password must have 8 characters, not the value given"),
        ("pin", "987", 987, "pin must be at least 1_000, not the value given"),
    ],
)
def test_a_secret_that_fails_a_check_is_not_shown(name: str, text: str, value: object, message: str) -> None:
    one = define(Login, {each.name: each for each in fields(Login)})[name]

    for refuse in (lambda: one.parse(text), lambda: one.check(value)):
        with pytest.raises(ConfigError) as caught:
            refuse()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("check", "value", "problem"),
    [
        (at_least(1_000_000), 999_999, "must be at least 1_000_000"),
        (at_most(0.5), 1, "must be at most 0.5"),
        (between(0, 1_000), 1_001, "must be between 0 and 1_000"),
        (at_least(0), nan, "must be at least 0"),
        (at_most(1), nan, "must be at most 1"),
        (between(0, 1), nan, "must be between 0 and 1"),
        (at_least(0), inf, None),
    ],
)
def test_limits_are_shown_as_values_are_and_refuse_nan(
    check: Check, value: float, problem: str | None
) -> None:
    assert check(value) == problem


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("", False),
        ("10.0.0.1", False),
        ("::", False),
        ("127.example.com", False),
    ],
)
def test_one_rule_says_which_hosts_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_whole_numbers_of_clients_have_no_width() -> None:
    assert defined(of_broker=False)["num_partitions"].parse("5000000000") == 5_000_000_000


def test_what_a_setting_shows_can_be_parsed_again() -> None:
    for one in defined().values():
        if one.name not in ("extensions", "password", "retention.ms"):
            assert one.parse(one.show(one.default)) == one.default


def test_a_docstring_behind_a_field_documents_it_where_the_declaration_does_not() -> None:
    assert documentation(Example) == {"enable": "Whether at all, and how."}
    assert defined()["num_partitions"].doc == "How many."
