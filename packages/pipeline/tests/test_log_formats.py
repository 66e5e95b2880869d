"""Log formats of web servers as patterns."""

from __future__ import annotations

import re

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.log_formats import LineFormat, apache_format, nginx_format, regex_format
from ottla.pipeline.jobs.samples.sample_data import LINES_BAD_EVERY, lines


def _groups(given: LineFormat, text: str) -> dict[str, str] | None:
    found = re.fullmatch(given.pattern, text)
    return (
        {field.name: each for field, each in zip(given.fields, found.groups(), strict=True)}
        if found
        else None
    )


COMBINED = (
    '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif?q=\\"x\\" HTTP/1.0" 200 2326 '
    '"http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)"'
)


def test_apache_combined() -> None:
    assert _groups(apache_format("combined"), COMBINED) == {
        "remote_host": "127.0.0.1",
        "identity": "-",
        "user": "frank",
        "time": "10/Oct/2000:13:55:36 -0700",
        "request": 'GET /a.gif?q=\\"x\\" HTTP/1.0',
        "status": "200",
        "bytes": "2326",
        "referer": "http://www.example.com/start.html",
        "user_agent": "Mozilla/4.08 [en] (Win98; I ;Nav)",
    }


def test_nginx_combined() -> None:
    found = _groups(nginx_format("combined"), COMBINED)
    assert found is not None
    assert (found["remote_addr"], found["status"], found["bytes"]) == ("127.0.0.1", "200", "2326")
    assert found["time"] == "10/Oct/2000:13:55:36 -0700"


def test_formats_of_ones_own() -> None:
    apache = apache_format('%v:%p %h "%{X-Request-Id}i" %D %>s')
    assert [(each.name, each.type) for each in apache.fields] == [
        ("virtual_host", "STRING"), ("port", "INT"), ("remote_host", "STRING"), ("x_request_id", "STRING"),
        ("duration_us", "BIGINT"), ("status", "INT"),
    ]  # fmt: skip
    found = _groups(apache, 'example.org:443 10.0.0.1 "a b" 1500 404')
    assert found is not None
    assert (found["port"], found["x_request_id"], found["status"]) == ("443", "a b", "404")
    nginx = nginx_format("$time_iso8601|${request_id}|$request_time")
    assert _groups(nginx, "2024-01-02T03:04:05+00:00|abc|0.5") == {
        "time": "2024-01-02T03:04:05+00:00", "request_id": "abc", "duration_s": "0.5",
    }  # fmt: skip


def test_users_may_have_spaces() -> None:
    line = COMBINED.replace("frank", "frank the first")
    found = _groups(apache_format("common"), line.split(' "http')[0])
    assert found is not None
    assert found["user"] == "frank the first"


def test_cut_off_lines_are_none() -> None:
    given = nginx_format("combined")
    for number, line in enumerate(lines(200)):
        assert (_groups(given, line) is None) == (number % LINES_BAD_EVERY == LINES_BAD_EVERY - 1)


def test_literal_text_is_taken_as_it_is() -> None:
    given = nginx_format("a.b*[$status] (x)")
    assert _groups(given, "a.b*[200] (x)") == {"status": "200"}
    assert _groups(given, "aXb*[200] (x)") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no variables", "has variables such as"),
        ("%h %Z", "%Z is not supported"),
        ("%{%s}t", "write %t"),
        ("%h %h", "two variables become the column 'remote_host'"),
    ],
)
def test_invalid_formats_of_apache(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        apache_format(text)


def test_a_regular_expression() -> None:
    given = regex_format(
        r"(?<at>\S+) (?P<level_name>[A-Z]+)(?<!X) (?P<message>.*)", {"at": "TIMESTAMP"}, "yyyy"
    )
    assert "?P" not in given.pattern, "Java has no underscores in names"
    assert [(each.name, each.type, each.time_format) for each in given.fields] == [
        ("at", "TIMESTAMP", "yyyy"), ("level_name", "STRING", None), ("message", "STRING", None),
    ]  # fmt: skip
    assert _groups(given, "2024 WARN all is well") == {
        "at": "2024", "level_name": "WARN", "message": "all is well",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(", "is not a regular expression"), ("a+", "needs named groups"), ("(?P<a>x)(y)", "without names")],
)
def test_invalid_regular_expressions(pattern: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        regex_format(pattern, {}, None)
