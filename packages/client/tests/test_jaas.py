"""JAAS lines, read as Kafka reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.jaas import JaasError, parse_jaas, parse_one_module

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_line_has_a_module_a_flag_and_options() -> None:
    module = parse_one_module(f"{PLAIN} required username=\"kafka\" password='se cret' user_a=b;")

    assert (module.name, module.control_flag) == (PLAIN, "required")
    assert module.options == {"username": "kafka", "password": "se cret", "user_a": "b"}


def test_a_line_may_have_several_lines_and_comments() -> None:
    text = f"""
    // the login of brokers
    {PLAIN}  REQUIRED
       username = kafka /* not
       alice */ password = x-1.2$_   / more
       ;"""

    assert parse_one_module(text).options == {"username": "kafka", "password": "x-1.2$_"}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r'"a\"b"', 'a"b'),
        (r'"a\\"', "a\\"),
        (r"'a\'b'", "a'b"),
        (r'"\t\n\r\f\b\a\v"', "\t\n\r\f\b\a\v"),
        (r'"\101\1234\47x\400"', "AS4'x 0"),
        (r'"\q"', "q"),
        ('"a;b=c//d"', "a;b=c//d"),
        ('""', ""),
        ("é", "é"),
        ('"пароль"', "пароль"),
    ],
)
def test_values_are_quoted_and_escaped_as_in_java(written: str, value: str) -> None:
    assert parse_one_module(f"{PLAIN} required key={written};").options == {"key": value}


def test_a_value_without_its_closing_quote_ends_with_the_line() -> None:
    assert parse_one_module(f'{PLAIN} required a="b c\n;').options == {"a": "b c"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Login module not specified in JAAS config"),
        ("  /* nothing */ ", "Login module not specified in JAAS config"),
        (PLAIN, "Login module control flag not specified in JAAS config"),
        (f"{PLAIN};", "Login module control flag not specified in JAAS config"),
        (f"{PLAIN} 5;", "Login module control flag not specified in JAAS config"),
        (f"{PLAIN} must;", "Invalid login module control flag 'must' in JAAS config"),
        (f"{PLAIN} required", "JAAS config entry not terminated by semi-colon"),
        (f'{PLAIN} required a="b"', "JAAS config entry not terminated by semi-colon"),
        (f'{PLAIN} required a="b;', "JAAS config entry not terminated by semi-colon"),
        (f'{PLAIN} required a="b\\', "JAAS config entry not terminated by semi-colon"),
        (f'{PLAIN} required a="b\\"', "JAAS config entry not terminated by semi-colon"),
        (f"{PLAIN} required a;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required a", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required a=", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required a=;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required a=123;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required a=-b;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required a=/etc/x;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN} required ==b;", "Key of an option not specified in JAAS config"),
    ],
)
def test_a_line_that_is_cut_short_or_wrong_is_named_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(JaasError) as raised:
        parse_one_module(text)

    assert str(raised.value) == problem


def test_a_setting_has_one_module() -> None:
    two = f"{PLAIN} required; {PLAIN} optional a=b;"

    assert len(parse_jaas(two)) == 2
    with pytest.raises(JaasError, match="contains 2 login modules, should be 1 module"):
        parse_one_module(two)


def test_no_secret_is_in_the_repr_of_a_module_or_in_an_error() -> None:
    line = f'{PLAIN} required username="u" password="hunter2"'

    assert "hunter2" not in repr(parse_one_module(line + ";"))
    for length in range(len(line)):
        with pytest.raises(JaasError) as raised:
            parse_one_module(line[:length])
        assert "hunt" not in str(raised.value)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    problem = ""
    try:
        parse_jaas(text)
    except JaasError as error:
        problem = str(error)

    assert "\n" not in problem


def test_a_long_line_takes_linear_time() -> None:
    for filling in ("\\" * 300_000, '"' * 300_000, "/*" * 150_000, "a=" * 150_000, "-." * 150_000):
        with pytest.raises(JaasError):
            parse_one_module(f'{PLAIN} required a="{filling}')
