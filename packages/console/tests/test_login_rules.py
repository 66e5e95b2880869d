"""The rule of rights, the file of logins, the bounds of sessions and of attempts, and checks of passwords."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from starlette.datastructures import Headers

from ottla.admin import ClusterState, PartitionHealth
from ottla.console.logins.access import Grant, Need, Role, Viewer, decision, seen_state
from ottla.console.logins.authenticator import (
    MOST_WAITING,
    Authenticator,
    LoginRefused,
    cookies_of,
    hashed,
    is_right,
)
from ottla.console.logins.files import (
    Logins,
    LoginsDraft,
    LoginsError,
    Token,
    User,
    parse_logins,
    read_logins,
    with_token,
    with_user,
    without,
)
from ottla.console.logins.sessions import (
    IDLE_MS,
    LASTING_MS,
    Attempts,
    Limit,
    Person,
    Sessions,
    key_of,
    network_of,
)
from ottla.protocol.topics import TopicPartition

PASSWORD = "correct horse"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
"""The cost stands in the hash: tests need none."""
PATH = Path("console.toml")


# --- the rule


def test_a_grant_is_over_the_names_that_it_has_and_hides_the_others() -> None:
    viewer = Viewer(
        "o", (Grant(Role.OPERATOR, ("prod",), ("orders*",), ("g",)), Grant(Role.VIEWER, ("test",)))
    )

    assert decision(viewer, Need(Role.OPERATOR, "prod", "orders-1")) == "allowed"
    assert decision(viewer, Need(Role.ADMINISTRATOR, "prod", "orders-1")) == "refused"
    assert decision(viewer, Need(cluster="prod", topic="payments")) == "hidden"
    assert decision(viewer, Need(cluster="prod", group="h")) == "hidden"
    assert decision(viewer, Need(cluster="prod", is_whole=True)) == "refused"
    assert decision(viewer, Need(cluster="test", is_whole=True)) == "allowed"
    assert decision(viewer, Need(Role.OPERATOR, "test", "orders-1")) == "refused"
    assert decision(viewer, Need(cluster="else")) == "hidden"
    assert decision(Viewer("nobody"), Need()) == "hidden"


def test_the_topics_of_a_cluster_are_seen_by_the_same_rule() -> None:
    grants = (
        Grant(Role.VIEWER, ("prod*",), ("orders*", "a.b", "[x]")), Grant(Role.OPERATOR, ("test",), ("t?",)),
        Grant(Role.VIEWER, ("other",)),
    )  # fmt: skip
    topics = ("orders", "orders-1", "my-orders", "a.b", "aXb", "x", "[x]", "t1", "t12", "orders\nx", "")
    partitions = tuple(PartitionHealth(TopicPartition(topic, 0), 1, (1,), (1,)) for topic in topics)
    state = ClusterState("id", 1, (), partitions)

    for viewer in (Viewer("anna", grants), Viewer("nobody")):
        for cluster in ("prod-1", "test", "other", "else"):
            seen = {health.partition.topic for health in seen_state(viewer, cluster, state).partitions}
            assert seen == {topic for topic in topics if viewer.may(Need(cluster=cluster, topic=topic))}


def test_two_grants_do_not_add_up_to_a_third() -> None:
    viewer = Viewer("o", (Grant(Role.OPERATOR, ("a",), ("x",)), Grant(Role.VIEWER, ("b",))))

    assert not viewer.may(Need(Role.OPERATOR, "b", "x"))
    assert not viewer.may(Need(Role.VIEWER, "a", "y"))


# --- the file


def test_users_are_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "console.toml"
    draft = LoginsDraft(path)
    grant = Grant(Role.OPERATOR, ("prod",), ("orders*", 'a"b\\'), ())
    draft.text = with_user(draft.text, User("anna", CHEAP, (grant,)))
    draft.text = with_token(draft.text, Token("prometheus", "0" * 64, (Grant(Role.VIEWER),)))
    draft.write()

    assert path.stat().st_mode & 0o777 == 0o600
    found = read_logins(path)
    assert found.users["anna"].grants == (grant,)
    assert found.tokens == (Token("prometheus", "0" * 64, (Grant(Role.VIEWER),)),)
    left = parse_logins(without(draft.text, "user", "anna", path), path)
    assert (left.users, left.tokens) == ({}, found.tokens)
    assert parse_logins(without(draft.text, "token", "prometheus", path), path).users == found.users
    assert "anna" not in repr(CHEAP)
    assert CHEAP not in repr(found)


def test_topics_of_a_grant_do_not_show_all_groups() -> None:
    text = f'[[user]]\nname = "a"\npassword = "{CHEAP}"\nrole = "viewer"\ntopics = ["t"]\n'

    assert parse_logins(text, PATH).users["a"].grants == (Grant(Role.VIEWER, ("*",), ("t",), ()),)


USER = f'[[user]]\nname = "a"\npassword = "{CHEAP}"\n'
OIDC = '[oidc]\nissuer = "https://id.example.com"\nclient_id = "c"\n'


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (USER, "user 1: has no role"),
        (USER + 'role = "king"', "has role = 'king': it is viewer, operator, administrator"),
        (USER + 'role = "viewer"\ntopic = ["a"]', "has no key 'topic'"),
        (USER + 'role = "viewer"\ntopics = "a"', "it is a list of texts"),
        (USER + 'role = "viewer"\n' + USER + 'role = "viewer"', "two users are named 'a'"),
        ('[[user]]\nname = "a"\npassword = "secret"\nrole = "viewer"', "has a password that cannot be used"),
        ('[[user]]\nname = "a b"\n', "has name = 'a b'"),
        ("[[mask]]\ntopics = ['a']", "masks nothing"),
        ("[mask]\nkey = true", "must have [[mask]] tables"),
        ("users = 1", "has no key 'users'"),
        (OIDC, "gives nobody a role"),
        (OIDC.replace("https://id", "http://id"), "https://"),
        (OIDC + 'client_secret = "s"\n', "must say where client_secret is"),
        ("[[user", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_says_what_to_change_without_its_secrets(text: str, advice: str) -> None:
    with pytest.raises(LoginsError) as raised:
        parse_logins(text, PATH)

    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)
    assert 'secret"' not in str(raised.value)
    assert CHEAP not in str(raised.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    logins = tmp_path / "console.toml"
    logins.touch(mode=0o640)
    logins.chmod(0o640)

    with pytest.raises(LoginsError, match=r"mode 0640\): chmod 600 it"):
        read_logins(logins)


# --- sessions and attempts


def test_sessions_end_idle_and_in_any_case_and_live_updates_keep_none() -> None:
    sessions, person = Sessions(), Person("anna", "password")
    sessions.open("s", person, 0)

    assert sessions.find("s", IDLE_MS - 1, is_use=False) is not None
    assert sessions.find("s", IDLE_MS - 1, is_use=True) is not None
    assert sessions.find("s", 2 * IDLE_MS - 2, is_use=True) is not None
    assert sessions.find("s", 3 * IDLE_MS, is_use=True) is None
    sessions.open("s", person, 0)
    for at_ms in range(0, LASTING_MS, IDLE_MS // 2):
        assert sessions.find("s", at_ms, is_use=True) is not None
    assert sessions.find("s", LASTING_MS, is_use=True) is None
    assert len(sessions) == 0


def test_sessions_are_of_a_bounded_number() -> None:
    sessions = Sessions(most=10, most_of_a_user=3)
    for number in range(5):
        sessions.open(f"anna {number}", Person("anna", "password"), number)
    for number in range(20):
        sessions.open(f"user {number}", Person(f"user {number}", "password"), 10 + number)

    assert len(sessions) == 10
    assert sessions.find("user 9", 40, is_use=True) is None
    assert sessions.find("user 10", 40, is_use=True) is not None
    sessions.end(key_of("user 10"))
    assert sessions.find("user 10", 40, is_use=True) is None


def test_attempts_are_limited_by_address_and_by_user_and_a_success_counts_as_none() -> None:
    attempts = Attempts()
    by_user = [attempts.begin(f"10.0.0.{number}", "anna", 0) for number in range(12)]
    by_address = [attempts.begin("10.9.9.9", f"user {number}", 0) for number in range(22)]

    assert by_user == [0] * 10 + [30_000] * 2
    assert by_address == [0] * 20 + [15_000] * 2
    assert attempts.begin("10.0.1.1", "anna", 30_000) == 0
    for _ in range(100):
        assert attempts.begin("10.0.2.2", "bob", 0) == 0
        attempts.succeed("10.0.2.2", "bob")


def test_the_memory_of_attempts_is_bounded() -> None:
    limit = Limit(2, 1_000, most_known=100)
    for number in range(1_000):
        limit.count(f"name {number}", 0)

    assert len(limit) == 100
    limit.count("later", 1_000)
    assert len(limit) == 1


def test_an_address_of_ipv6_is_counted_as_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") != network_of("2001:db8:0:1::1")
    assert network_of("10.0.0.1") == "10.0.0.1"


def test_a_password_is_kept_as_an_argon2id_hash() -> None:
    stored = hashed(PASSWORD)

    assert stored.startswith("$argon2id$v=19$m=65536,t=3,")
    assert is_right(stored, PASSWORD)
    assert not is_right(stored, PASSWORD + " ")
    assert not is_right("$argon2id$nonsense", PASSWORD)


async def test_an_unknown_name_takes_the_work_of_a_wrong_password_and_waiters_are_bounded() -> None:
    checked = list[str]()

    class Watched(Authenticator):
        async def _is_right(self, stored: str, password: str) -> bool:
            checked.append(stored)
            return await super()._is_right(stored, password)

    desk = Watched(PATH, Logins({"anna": User("anna", CHEAP, (Grant(Role.VIEWER),))}))
    for name in ("anna", "nobody"):
        with pytest.raises(LoginRefused, match=r"The name or the password is wrong\."):
            await desk.log_in("10.0.0.1", name, "wrong")
    assert checked == [CHEAP, CHEAP]

    found = await asyncio.gather(
        *(desk.log_in(f"10.0.1.{number}", f"u{number}", "wrong") for number in range(2 * MOST_WAITING)),
        return_exceptions=True,
    )
    refused = [str(error) for error in found if isinstance(error, LoginRefused)]
    assert len(refused) == 2 * MOST_WAITING
    assert sum("Too many people" in text for text in refused) == MOST_WAITING


def test_cookies_of_other_programs_on_the_host_hide_no_session() -> None:
    headers = Headers({"cookie": 'prefs={"theme":"dark"}; ottla_session=secret; other'})

    assert cookies_of(headers)["ottla_session"] == "secret"
