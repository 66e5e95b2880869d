"""The log formats of web servers as regular expressions. Pure: text in, patterns and columns out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ottla.pipeline.errors import OptionError

CLF_TIME = "dd/MMM/yyyy:HH:mm:ss Z"
"""The timestamp format of web servers, as a Spark pattern: 10/Oct/2000:13:55:36 -0700."""
ISO_TIME = "yyyy-MM-dd'T'HH:mm:ssXXX"

_QUOTED = r'(?:[^"\\]|\\.)*'


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a log, its Spark type, and the format of its timestamps."""

    name: str
    type: str = "STRING"
    time_format: str | None = None


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A line format: a pattern for whole lines, whose groups are the columns, in order.

    The groups have no names, because Java's names may not contain underscores.
    """

    pattern: str
    fields: tuple[Field, ...]


APACHE = {
    "common": '%h %l %u %t "%r" %>s %b',
    "combined": '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"',
    "vhost_combined": '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"',
}
NGINX = {
    "combined": '$remote_addr - $remote_user [$time_local] "$request" '
    '$status $body_bytes_sent "$http_referer" "$http_user_agent"',
}

_APACHE_FIELDS = {
    "h": Field("remote_host"), "a": Field("remote_addr"), "A": Field("local_addr"), "l": Field("identity"),
    "u": Field("user"), "t": Field("time", "TIMESTAMP", CLF_TIME), "r": Field("request"),
    "s": Field("status", "INT"), "b": Field("bytes", "BIGINT"), "B": Field("bytes", "BIGINT"),
    "O": Field("bytes_sent", "BIGINT"), "I": Field("bytes_received", "BIGINT"),
    "D": Field("duration_us", "BIGINT"), "T": Field("duration_s", "DOUBLE"), "v": Field("virtual_host"),
    "V": Field("server_name"), "p": Field("port", "INT"), "P": Field("process", "INT"), "m": Field("method"),
    "U": Field("path"), "q": Field("query"), "H": Field("protocol"), "f": Field("file"),
    "X": Field("connection"), "k": Field("keepalives", "INT"), "L": Field("log_id"), "R": Field("handler"),
}  # fmt: skip

_NGINX_FIELDS = {
    "time_local": Field("time", "TIMESTAMP", CLF_TIME),
    "time_iso8601": Field("time", "TIMESTAMP", ISO_TIME),
    "msec": Field("time_s", "DOUBLE"), "status": Field("status", "INT"),
    "body_bytes_sent": Field("bytes", "BIGINT"), "bytes_sent": Field("bytes_sent", "BIGINT"),
    "request_length": Field("bytes_received", "BIGINT"), "request_time": Field("duration_s", "DOUBLE"),
    "upstream_response_time": Field("upstream_s"), "server_port": Field("port", "INT"),
    "remote_addr": Field("remote_addr"), "remote_user": Field("user"), "http_referer": Field("referer"),
    "http_user_agent": Field("user_agent"),
}  # fmt: skip

_APACHE_TOKEN = re.compile(
    r"%(?:[<>]|[!\d,]+)*(?:\{(?P<argument>[^}]*)\}(?P<kind>\^?[a-zA-Z]+)|(?P<one>[a-zA-Z%]))"
)
_NGINX_TOKEN = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))")


_FieldOf = Callable[[re.Match[str]], Field]


def apache_format(text: str) -> LineFormat:
    """Parse a LogFormat of Apache, or the name of a predefined one. Raises OptionError."""
    text = APACHE.get(text, text).replace('\\"', '"')
    return _line_format(text, _APACHE_TOKEN, _apache_field, "%h %l %u")


def nginx_format(text: str) -> LineFormat:
    """Parse a log_format of nginx, or the name `combined`. Raises OptionError."""
    return _line_format(NGINX.get(text, text), _NGINX_TOKEN, _nginx_field, "$remote_addr - $remote_user")


def _apache_field(token: re.Match[str]) -> Field:
    one, argument = token["one"], token["argument"]
    if argument is not None:
        if token["kind"] == "t":
            raise OptionError(f"{token[0]}: custom time formats are not supported; write %t")
        return Field(re.sub(r"\W+", "_", argument).strip("_").lower())
    if one not in _APACHE_FIELDS:
        raise OptionError(
            f"{token[0]} is not supported; supported are %{', %'.join(_APACHE_FIELDS)} and %{{...}}i"
        )
    return _APACHE_FIELDS[one]


def _nginx_field(token: re.Match[str]) -> Field:
    name = token["braced"] or token["plain"]
    return _NGINX_FIELDS.get(name, Field(name))


def _line_format(text: str, token: re.Pattern[str], field_of: _FieldOf, example: str) -> LineFormat:
    pattern, fields = [], []
    for before, found, after in _tokens(text, token):
        pattern.append(re.escape(before))
        if found is not None:
            field = field_of(found)
            fields.append(field)
            pattern.append(_group(field, before, after, is_bracketed=found[0].startswith("%")))
    if not fields:
        raise OptionError(f"a log format has variables such as {example!r}; this one has none: {text!r}")
    names = [field.name for field in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(
            f"two variables become the column {twice[0]!r}; remove one, or use format = 'regex'"
        )
    return LineFormat("".join(pattern), tuple(fields))


def _tokens(text: str, token: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str] | None, str]]:
    """Yield each variable with the text before it and the variable after it; finally the rest of the text."""
    at = 0
    for found in token.finditer(text):
        if found[0] == "%%":
            continue
        following = token.search(text, found.end())
        yield (
            text[at : found.start()],
            found,
            text[found.end() : following.start() if following else len(text)],
        )
        at = found.end()
    yield text[at:], None, ""


def _group(field: Field, before: str, after: str, *, is_bracketed: bool) -> str:
    """Return a group for a variable: up to the next text, and within quotes past escaped quotes."""
    if field.time_format == CLF_TIME and is_bracketed:
        return r"\[([^\]]*)\]"
    if before.endswith('"') and after.startswith('"'):
        return f"({_QUOTED})"
    if field.name == "user":
        return "(.*?)"  # may contain spaces
    if not after:
        return r"(\S*)"
    return f"([^{re.escape(after[0])}]*)"


def regex_format(text: str, types: dict[str, str], time_format: str | None) -> LineFormat:
    """Parse a regular expression whose named groups are columns. Raises OptionError."""
    text = re.sub(r"\(\?<(?![=!])", "(?P<", text)  # the syntax of Java and others
    try:
        names = re.compile(text).groupindex
    except re.error as error:
        raise OptionError(f"is not a regular expression: {error}") from None
    if not names:
        raise OptionError("needs named groups, which become columns: (?P<level>[A-Z]+) (?P<message>.*)")
    groups = re.compile(text).groups
    if groups != len(names):
        raise OptionError("has groups without names: write (?:...) for groups that are not columns")
    fields = tuple(
        Field(name, types.get(name, "STRING"), time_format if types.get(name) == "TIMESTAMP" else None)
        for name in sorted(names, key=lambda name: names[name])
    )
    return LineFormat(re.sub(r"\(\?P<\w+>", "(", text), fields)
