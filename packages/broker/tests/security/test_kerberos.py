"""GSSAPI on the server's side: its messages, and the rules that make users of Kerberos' names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.security.principal_mapping import LocalNames, NoRuleApplies, parse_kerberos_rules
from ottla.broker.security.sasl.kerberos import ContextRefused, KerberosServer
from ottla.broker.security.sasl.mechanisms import Identity, LoginInterrupted, MalformedToken

REALM = "OTTLA.TEST"


class ScriptedContext:
    """A context of two tokens; what it signs begins with `signed:`."""

    def __init__(self, initiator: str = f"anna@{REALM}", last: bytes = b"reply") -> None:
        self.initiator = initiator
        self.is_complete = False
        self._last = last

    def step(self, token: bytes) -> bytes:
        if token == b"more":
            return b"go on"
        if token == b"replayed":
            raise ContextRefused("Request is a replay", passes=True)
        if token != b"ticket":
            raise ContextRefused("Clock skew too great")
        self.is_complete = True
        return self._last

    def wrap(self, message: bytes) -> bytes:
        return b"signed:" + message

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"signed:"):
            raise ContextRefused("A token had an invalid signature")
        return token.removeprefix(b"signed:")


def names(*rules: str) -> LocalNames:
    return LocalNames(parse_kerberos_rules(rules or ("DEFAULT",)), REALM)


def server(**context: Any) -> KerberosServer:
    return KerberosServer(ScriptedContext(**context), names())


OFFER = b"signed:\x01\0\0\0"


def test_a_ticket_and_the_choice_of_no_layer_prove_a_name() -> None:
    login = server()

    assert login.evaluate(b"more") == b"go on"
    assert login.evaluate(b"ticket") == b"reply"
    assert login.evaluate(b"") == OFFER
    assert login.identity is None
    assert login.evaluate(OFFER) is None  # Java's server has no answer to the last message
    assert login.identity == Identity("anna")


def test_a_context_that_ends_without_a_token_is_followed_by_the_offer_at_once() -> None:
    login = server(last=b"")

    assert login.evaluate(b"ticket") == OFFER
    login.evaluate(OFFER)
    assert login.identity == Identity("anna")


@pytest.mark.parametrize("authzid", [b"anna", f"anna@{REALM}".encode(), b"kafka@localhost", b"root", b"\xff"])
def test_the_ticket_counts_whatever_name_the_client_asks_for(authzid: bytes) -> None:
    login = server(last=b"")
    login.evaluate(b"ticket")
    login.evaluate(OFFER + authzid)

    assert login.identity == Identity("anna")


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([b""], "an empty token of GSSAPI"),
        ([b"x" * 524_288], "Clock skew too great"),
        ([b"ticket", b"ticket"], "behind a complete context"),
        ([b"ticket", b"", b""], "invalid signature"),
        ([b"ticket", b"", b"signed:"], "wants a security layer"),
        ([b"ticket", b"", b"signed:\x01\0\0"], "wants a security layer"),
        ([b"ticket", b"", b"signed:\x02\0\0\0"], "wants a security layer"),
        ([b"ticket", b"", b"signed:\x04\0\1\0"], "wants a security layer"),
        ([b"ticket", b"", b"signed:\0\0\0\0"], "wants a security layer"),
    ],
)
def test_messages_out_of_order_or_with_another_layer_are_refused(tokens: list[bytes], reason: str) -> None:
    login = server()
    for token in tokens[:-1]:
        login.evaluate(token)

    with pytest.raises(MalformedToken, match=reason):
        login.evaluate(tokens[-1])
    assert login.identity is None


def test_a_replayed_request_ends_the_connection_without_a_refusal() -> None:
    with pytest.raises(LoginInterrupted, match="replay"):
        server().evaluate(b"replayed")


def test_a_name_that_no_rule_applies_to_is_refused() -> None:
    login = server(initiator="anna@ELSEWHERE", last=b"")
    login.evaluate(b"ticket")

    with pytest.raises(MalformedToken, match=r"no rule of .* applies to 'anna@ELSEWHERE'"):
        login.evaluate(OFFER)
    assert login.identity is None


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_answered_or_refused(tokens: list[bytes]) -> None:
    login = server()
    for token in tokens:
        try:
            login.evaluate(token)
        except MalformedToken:
            continue
    assert login.identity is None


# ---- rules


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        (["DEFAULT"], f"anna@{REALM}", "anna"),
        (["DEFAULT"], f"kafka/host.example.com@{REALM}", "kafka"),
        (["RULE:[1:$1]"], "anna@ELSEWHERE", "anna"),
        (["RULE:[1:$1]", "DEFAULT"], f"kafka/host@{REALM}", "kafka"),
        (["RULE:[2:$1-$2]"], "kafka/host@ELSEWHERE", "kafka-host"),
        (["RULE:[1:$1@$0](.*@ELSEWHERE)s/@.*//", "DEFAULT"], "anna@ELSEWHERE", "anna"),
        (["RULE:[1:$1@$0](.*@ELSEWHERE)s/@.*//", "DEFAULT"], f"anna@{REALM}", "anna"),
        (["RULE:[2:$1](kafka)s/kafka/broker/"], "kafka/h@R", "broker"),
        (["RULE:[1:$1]s/a/x/"], "anna@R", "xnna"),
        (["RULE:[1:$1]s/a/x/g"], "anna@R", "xnnx"),
        (["RULE:[1:$1]/L"], "Anna@R", "anna"),
        (["RULE:[1:$1]/U"], "Anna@R", "ANNA"),
        (["RULE:[1:$1]L"], "Anna@R", "anna"),
        (["RULE:[1:$1]s/a/x/g/L"], "ANNa@R", "annx"),
        (["RULE:[1:$1]s/^([a-z])(.*)$/$2$1/"], "anna@R", "nnaa"),
        (["RULE:[1:$1]s/^.*$/\\$1/"], "anna@R", "$1"),
        (["RULE:[1:$1]s/$/-x/"], "anna@R", "anna-x"),
        (["RULE:[1:$1]s/$/-x/g"], "anna@R", "anna-x"),
        (["RULE:[1:$1]s/n*/-/g"], "anna@R", "-a--a-"),
        (["RULE:[1:$1]s//./g"], "ü☃@R", ".ü.☃."),
        (["RULE:[1:$0.$1]"], "anna@R", "R.anna"),
        (["RULE:[1:$1]"], "ünï☃@R", "ünï☃"),
        (["RULE:[1:$1]"], "a,b=c :*@R", "a,b=c :*"),
    ],
)
def test_rules_make_users_as_kafkas_do(rules: list[str], principal: str, name: str) -> None:
    assert names(*rules).name_of(principal) == name


@pytest.mark.parametrize(
    ("rules", "principal", "reason"),
    [
        (["DEFAULT"], "anna@ELSEWHERE", "no rule"),
        (["DEFAULT"], "anna@", "no rule"),
        (["DEFAULT"], f"@{REALM}", "no simple name"),
        (["RULE:[2:$1]"], "anna@R", "no rule"),
        (["RULE:[1:$1](bob)"], "bobby@R", "no rule"),
        (["RULE:[1:$1@$0]"], "anna@R", "'anna@R', which is no simple name"),
        (["RULE:[1:$1]s/n/\\//g"], "anna@R", None),
        (["RULE:[1:]"], "anna@R", "'', which is no simple name"),
        (["DEFAULT"], "a/b/c@R", "at most two components"),
        (["DEFAULT"], "a@b@R", "at most two components"),
        (["DEFAULT"], "anna", "at most two components"),
        (["DEFAULT"], "", "at most two components"),
        (["DEFAULT"], "a" * 20_000 + f"@{REALM}", "at most two components"),
    ],
)
def test_a_name_without_a_user_is_refused(rules: list[str], principal: str, reason: str | None) -> None:
    if reason is None:  # a replacement of Kafka's rules cannot hold a slash
        with pytest.raises(ConfigError, match="must have rules like RULE:"):
            names(*rules)
        return
    with pytest.raises(NoRuleApplies, match=reason):
        names(*rules).name_of(principal)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("", "must have rules like RULE:"),
        ("default", "must have rules like RULE:"),
        ("DEFAULT/L", "must have rules like RULE:"),
        ("RULE:[:$1]", "must have rules like RULE:"),
        ("RULE:[1:$1", "must have rules like RULE:"),
        ("RULE:[1:$1]s/a/b", "must have rules like RULE:"),
        ("RULE:[1:$1]/X", "must have rules like RULE:"),
        ("RULE:[1:$2]", r"must name components from \$0 to \$1, not \$2"),
        ("RULE:[1:$]", r"must name components from \$0 to \$1, not \$"),
        ("RULE:[1:$99999999999999999999]", "must name components"),
        ("RULE:[1:$1](*)", "which RE2 cannot match"),
        ("RULE:[1:$1](?=a)", "must have rules like|which RE2 cannot match"),
        ("RULE:[1:$1]s/(a)\\1/b/", "which RE2 cannot match"),
        ("RULE:[1:$1]s/a/$1/", r"has \$1 for no group"),
        ("RULE:[1:$1]s/a/$/", r"has \$ for no group"),
        ("RULE:[1:$1]s/a/\\/", r"has \\ for no group"),
        ("RULE:[1:$1]s/(?P<n>a)/${n}/", r"has \$ for no group"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_at_the_start(rule: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        parse_kerberos_rules([rule])
    assert "\n" not in str(raised.value)


def test_no_rule_takes_exponential_time() -> None:
    rules = names("RULE:[1:$1]s/^(a+)+b$/x/")

    assert rules.name_of("a" * 16_000 + f"@{REALM}") == "a" * 16_000


# ---- settings

LINE = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
    'keyTab="/etc/kafka.keytab" principal="kafka/localhost@OTTLA.TEST";'
)
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.kerberos.service.name": "kafka",
    "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": LINE,
}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"listener.name.sasl_plaintext.gssapi.sasl.jaas.config": ""}, "GSSAPI takes its keytab from it"),
        (
            {"listener.name.sasl_plaintext.gssapi.sasl.jaas.config": LINE.replace("useKeyTab=true", "")},
            "must have useKeyTab=true, keyTab and principal",
        ),
        (
            {
                "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": LINE.replace(
                    "com.sun.security.auth.module", "org.example"
                )
            },
            "must name com.sun.security.auth.module.Krb5LoginModule: other Java classes",
        ),
        ({"sasl.kerberos.service.name": ""}, "sasl.kerberos.service.name must be set for GSSAPI"),
        (
            {"listener.name.sasl_plaintext.gssapi.sasl.jaas.config": LINE[:-1] + ' serviceName="other";'},
            "sasl.kerberos.service.name must be 'other' as in listener.name.sasl_plaintext.gssapi",
        ),
        (
            {"sasl.kerberos.principal.to.local.rules": "RULE:[1:$1"},
            "sasl.kerberos.principal.to.local.rules must have rules like RULE:|GSSAPI needs: pip install",
        ),
    ],
)
def test_a_wrong_setting_of_kerberos_refuses_the_start_in_one_line(
    changed: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        load_broker_config({**SETTINGS, **changed})
    assert "\n" not in str(raised.value)


def test_without_the_extra_the_start_is_refused_with_the_command_that_installs_it(tmp_path: Path) -> None:
    flags = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    program = (
        "import runpy, sys; sys.modules['gssapi'] = None; "
        "runpy.run_module('ottla.broker', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "start", "--data-dir", str(tmp_path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert line.endswith(
        "sasl.enabled.mechanisms GSSAPI needs: pip install 'ottla-broker[gssapi]', and the Kerberos library "
        "to compile it (Debian: libkrb5-dev gcc)"
    )
