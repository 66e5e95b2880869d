"""The decisions of the authorizer are those of a naive model that looks at every rule."""

from __future__ import annotations

import string
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.security.acls.authorizer import AclAuthorizer
from ottla.broker.security.acls.bindings import (
    Binding,
    Entry,
    EntryFilter,
    Pattern,
    PatternFilter,
    PatternType,
    PermissionType,
    parse_super_users,
)
from ottla.broker.security.acls.rules import RulesByPattern
from ottla.broker.security.authorizer import CLUSTER, Operation, Resource, ResourceType
from ottla.broker.security.principal import ANONYMOUS, Principal

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"

NAMES = ["a", "ab", "abc", "b", "ba", "*"]
HOSTS = [HOST, "10.0.0.2"]
ASKED = [operation for operation in Operation if operation is not Operation.ALL]

patterns = st.builds(
    Pattern, st.sampled_from([TOPIC, GROUP]), st.sampled_from([LITERAL, PREFIXED]), st.sampled_from(NAMES)
)
entries = st.builds(
    Entry,
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from([*HOSTS, "*"]),
    st.sampled_from(
        [Operation.ALL, READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]
    ),
    st.sampled_from(PermissionType),
)
bindings = st.lists(st.builds(Binding, patterns, entries), max_size=12)
questions = st.tuples(
    st.sampled_from([ALICE, BOB, ANONYMOUS]), st.sampled_from(HOSTS), st.sampled_from(ASKED),
    st.builds(Resource, st.sampled_from([TOPIC, GROUP]), st.sampled_from([*NAMES[:4], "abx", "c"])),
)  # fmt: skip


def grouped(found: Iterable[Binding]) -> dict[Pattern, frozenset[Entry]]:
    rules: dict[Pattern, set[Entry]] = {}
    for binding in found:
        rules.setdefault(binding.pattern, set()).add(binding.entry)
    return {pattern: frozenset(members) for pattern, members in rules.items()}


def authorizer_of(found: Iterable[Binding], *super_users: str, by_default: bool = False) -> AclAuthorizer:
    authorizer = AclAuthorizer(super_users, allow_everyone_if_no_acl_found=by_default, now_ms=lambda: 0.0)
    for pattern, members in grouped(found).items():
        authorizer.rules.replace(pattern, members)
    return authorizer


def rule(
    name: str, permission: PermissionType = ALLOW, operation: Operation = READ, *,
    principal: str = "User:alice", host: str = "*", pattern_type: PatternType = LITERAL,
    kind: ResourceType = TOPIC,
) -> Binding:  # fmt: skip
    return Binding(Pattern(kind, pattern_type, name), Entry(principal, host, operation, permission))


# -- the naive model


def is_about(pattern: Pattern, resource: Resource) -> bool:
    if pattern.type is not resource.type:
        return False
    if pattern.pattern_type is LITERAL:
        return pattern.name in ("*", resource.name)
    return resource.name.startswith(pattern.name)


def applies(entry: Entry, principal: Principal, host: str) -> bool:
    return entry.principal in ("User:*", str(principal)) and entry.host in ("*", host)


IMPLYING = {
    DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def model(
    found: list[Binding],
    by_default: bool,
    principal: Principal,
    host: str,
    operation: Operation,
    resource: Resource,
) -> bool:
    about = [binding.entry for binding in found if is_about(binding.pattern, resource)]
    if not about:
        return by_default
    mine = [entry for entry in about if applies(entry, principal, host)]
    if any(entry.permission is DENY and entry.operation in (operation, Operation.ALL) for entry in mine):
        return False
    enough = {operation, Operation.ALL} | IMPLYING.get(operation, set())
    return any(entry.permission is ALLOW and entry.operation in enough for entry in mine)


def model_of_any(
    found: list[Binding],
    by_default: bool,
    principal: Principal,
    host: str,
    operation: Operation,
    kind: ResourceType,
) -> bool:
    mine = [
        binding
        for binding in found
        if binding.pattern.type is kind
        and applies(binding.entry, principal, host)
        and binding.entry.operation in (operation, Operation.ALL)
    ]
    denied = [binding.pattern for binding in mine if binding.entry.permission is DENY]
    if Pattern(kind, LITERAL, "*") in denied:
        return False
    if by_default:
        return True

    def is_free(pattern: Pattern) -> bool:
        if pattern == Pattern(kind, LITERAL, "*"):
            return True
        dominating = [deny for deny in denied if deny.pattern_type is PREFIXED]
        return not any(pattern.name.startswith(deny.name) for deny in dominating) and (
            pattern.pattern_type is PREFIXED or pattern not in denied
        )

    return any(is_free(binding.pattern) for binding in mine if binding.entry.permission is ALLOW)


@given(bindings, st.booleans(), questions)
def test_a_decision_is_that_of_the_model(
    found: list[Binding], by_default: bool, question: tuple[Principal, str, Operation, Resource]
) -> None:
    assert authorizer_of(found, by_default=by_default).allows(*question) == model(
        found, by_default, *question
    )


@given(bindings, st.booleans(), questions)
def test_a_decision_about_any_resource_of_a_type_is_that_of_the_model(
    found: list[Binding], by_default: bool, question: tuple[Principal, str, Operation, Resource]
) -> None:
    principal, host, operation, resource = question
    asked = principal, host, operation, resource.type

    assert authorizer_of(found, by_default=by_default).allows_any(*asked) == model_of_any(
        found, by_default, *asked
    )


@given(st.lists(st.tuples(patterns, st.none() | st.frozensets(entries, max_size=3))), questions)
def test_changed_rules_decide_as_if_they_had_been_so_from_the_start(
    changes: list[tuple[Pattern, frozenset[Entry] | None]],
    question: tuple[Principal, str, Operation, Resource],
) -> None:
    changed = authorizer_of([])
    for pattern, members in changes:
        changed.rules.replace(pattern, members)

    fresh = authorizer_of([])
    for pattern, members in dict(changes).items():
        fresh.rules.replace(pattern, members)

    principal, host, operation, resource = question
    asked = principal, host, operation, resource.type
    assert changed.allows(*question) == fresh.allows(*question)
    assert changed.allows_any(*asked) == fresh.allows_any(*asked)
    assert sorted(changed.rules.patterns()) == sorted(fresh.rules.patterns())
    assert (
        changed.rules.count
        == fresh.rules.count
        == sum(len(members or ()) for members in dict(changes).values())
    )


def test_a_change_without_effect_is_none() -> None:
    rules = RulesByPattern()
    binding = rule("t")

    assert rules.replace(binding.pattern, frozenset({binding.entry}))
    assert not rules.replace(binding.pattern, frozenset({binding.entry}))
    assert rules.replace(binding.pattern, None)
    assert not rules.replace(binding.pattern, None)
    assert rules.replace(binding.pattern, frozenset())
    assert not rules.replace(binding.pattern, frozenset())


# -- by example


def test_a_super_user_may_do_what_is_denied() -> None:
    authorizer = authorizer_of([rule("t", DENY, Operation.ALL)], "User:alice")

    assert authorizer.allows(ALICE, HOST, READ, Resource(TOPIC, "t"))
    assert authorizer.allows_any(ALICE, HOST, WRITE, TOPIC)
    assert not authorizer.allows(BOB, HOST, READ, Resource(TOPIC, "t"))


def test_rules_that_cannot_be_read_stop_everybody_but_super_users() -> None:
    authorizer = authorizer_of([rule("*")], "User:root", by_default=True)
    authorizer.rules.replace(Pattern(TOPIC, PREFIXED, "pay"), None)

    assert not authorizer.allows(ALICE, HOST, READ, Resource(TOPIC, "payments"))
    assert authorizer.allows(ALICE, HOST, READ, Resource(TOPIC, "orders"))
    assert authorizer.allows(Principal("User", "root"), HOST, READ, Resource(TOPIC, "payments"))


def test_a_name_whose_rules_cannot_be_read_gives_no_permission_on_any_topic() -> None:
    authorizer = authorizer_of([rule("payments", operation=WRITE)])
    assert authorizer.allows_any(ALICE, HOST, WRITE, TOPIC)

    authorizer.rules.replace(Pattern(TOPIC, PREFIXED, "pay"), None)

    assert not authorizer.allows_any(ALICE, HOST, WRITE, TOPIC)


@pytest.mark.parametrize(
    ("in_rule", "client"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),  # as Java writes it
        ("::1", "::1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("fe80::1", "fe80::1%eth0"),
    ],
)
def test_a_host_is_an_address_however_it_is_written(in_rule: str, client: str) -> None:
    authorizer = authorizer_of([rule("t", host=in_rule)])

    assert authorizer.allows(ALICE, client, READ, Resource(TOPIC, "t"))
    assert authorizer.allows_any(ALICE, client, READ, TOPIC)
    assert not authorizer.allows(ALICE, "10.0.0.9", READ, Resource(TOPIC, "t"))


@pytest.mark.parametrize("name", ["CN=a,OU=b;c", "a:b", "ü\u2028\n", "*x", "  ", "🦦", "Alice"])
def test_odd_characters_in_names_of_principals_are_compared_as_they_are(name: str) -> None:
    authorizer = authorizer_of([rule("t", principal=f"User:{name}")])

    assert authorizer.allows(Principal("User", name), HOST, READ, Resource(TOPIC, "t"))
    assert not authorizer.allows(Principal("User", name + "x"), HOST, READ, Resource(TOPIC, "t"))
    assert not authorizer.allows(Principal("user", name), HOST, READ, Resource(TOPIC, "t"))


def test_one_may_act_as_a_broker_who_may_from_some_host() -> None:
    def of(*found: Binding) -> AclAuthorizer:
        return authorizer_of(found)

    def cluster(permission: PermissionType, host: str) -> Binding:
        return rule(CLUSTER.name, permission, Operation.CLUSTER_ACTION, host=host, kind=ResourceType.CLUSTER)

    assert not of().may_act_as_broker(ALICE)
    assert authorizer_of([], "User:alice").may_act_as_broker(ALICE)
    assert of(cluster(ALLOW, HOST)).may_act_as_broker(ALICE)
    assert not of(cluster(ALLOW, HOST)).may_act_as_broker(BOB)
    assert of(cluster(ALLOW, "*"), cluster(DENY, HOST)).may_act_as_broker(ALICE)
    assert not of(cluster(ALLOW, HOST), cluster(DENY, "*")).may_act_as_broker(ALICE)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("User:alice", ["User:alice"]),
        ("User:alice; User:bob ;;", ["User:alice", "User:bob"]),
        ("User:CN=broker,OU=Ops,C=SE;User:a:b", ["User:CN=broker,OU=Ops,C=SE", "User:a:b"]),
    ],
)
def test_super_users_are_separated_by_semicolons(text: str, found: list[str]) -> None:
    assert parse_super_users(text) == frozenset(found)


@pytest.mark.parametrize("text", ["alice", "User:alice;;User:bob", ";User:alice", "bob;"])
def test_a_super_user_without_a_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a principal"):
        parse_super_users(text)


def test_lookups_do_not_depend_on_the_number_of_rules() -> None:
    few, many = RulesByPattern(), RulesByPattern()
    for number in range(10_000):
        name = f"{string.ascii_lowercase[number % 26]}{number:05}"
        pattern = Pattern(TOPIC, PREFIXED if number % 2 else LITERAL, name)
        for rules in (few, many) if number < 10 else (many,):
            rules.replace(pattern, frozenset({rule(name).entry}))

    name = "b00001-events"
    assert len(few.about(Resource(TOPIC, name))) == len(many.about(Resource(TOPIC, name))) == 1
    assert [list(rules._lengths[TOPIC]) for rules in (few, many)] == [[6], [6]]


# -- filters


def matches_naively(selected: PatternFilter, pattern: Pattern) -> bool:
    if selected.type not in (None, pattern.type):
        return False
    match selected.pattern_type:
        case PatternType.MATCH if selected.name is not None:
            return is_about(pattern, Resource(pattern.type, selected.name)) or selected.name == pattern.name
        case PatternType.ANY | PatternType.MATCH:
            return selected.name in (None, pattern.name)
        case pattern_type:
            return pattern_type is pattern.pattern_type and selected.name in (None, pattern.name)


pattern_filters = st.builds(
    PatternFilter,
    st.sampled_from([None, TOPIC, GROUP]),
    st.sampled_from(PatternType),
    st.sampled_from([None, *NAMES, "abcd"]),
)


@given(pattern_filters, patterns)
def test_a_filter_selects_patterns_as_the_model(selected: PatternFilter, pattern: Pattern) -> None:
    assert selected.matches(pattern) == matches_naively(selected, pattern)
    if selected.named:
        assert selected.matches(pattern) == (pattern in selected.named)


@given(entries, st.sets(st.sampled_from(Entry._fields)))
def test_a_filter_of_entries_compares_the_fields_that_it_has(entry: Entry, fields: set[str]) -> None:
    of_some = EntryFilter(
        **{name: getattr(entry, name) if name in fields else None for name in Entry._fields}
    )
    other = Entry("User:carol", "10.9.9.9", Operation.CREATE, DENY if entry.permission is ALLOW else ALLOW)

    assert of_some.matches(entry)
    assert of_some.matches(other) == (not fields)
