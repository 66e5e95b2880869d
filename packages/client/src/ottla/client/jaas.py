"""JAAS lines (`sasl.jaas.config`), split into words as Kafka does it, by the rules of Java's StreamTokenizer.

`org.apache.kafka.common.security.plain.PlainLoginModule required username="kafka" password="secret";`

Some of the rules surprise: a number that is not quoted is no value, `/` begins a comment outside quotes, and
a quoted value ends with its line. Errors name a key, never a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CONTROL_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_LONGEST_SHOWN: Final = 100
_WORD: Final = r"[A-Za-z_$\u00a0-\U0010ffff]"
_TOKEN: Final = re.compile(
    rf"""
      (?P<space>[\x00-\x20]+)
    | (?P<comment>/\*.*?(?:\*/|\Z) | /[^\r\n]*)
    | (?P<number>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+|\.))
    | (?P<word>(?:{_WORD})(?:{_WORD}|[0-9.\-])*)
    | (?P<quoted>
          "(?:\\[^\r\n]|[^"\\\r\n])*(?:"|\\?(?=[\r\n]|\Z))
        | '(?:\\[^\r\n]|[^'\\\r\n])*(?:'|\\?(?=[\r\n]|\Z))
      )
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_END: Final = ("end", "")
_NO_TEXT: Final = ("number", "other", "end")


class JaasError(ValueError):
    """A JAAS line cannot be read; the message has no secret of it."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry of a JAAS line. Its options hold passwords, so `repr` shows their names only."""

    name: str
    control_flag: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name!r}, options={sorted(self.options)})"


def parse_jaas(text: str) -> tuple[LoginModule, ...]:
    """Read the entries of a JAAS line. Raises `JaasError`."""
    tokens, modules = _tokens(text), []
    while (token := next(tokens)) != _END:
        modules.append(_module(token, tokens))
    if not modules:
        raise JaasError("Login module not specified in JAAS config")
    return tuple(modules)


def parse_one_module(text: str) -> LoginModule:
    """Read a JAAS line that has to have one entry. Raises `JaasError`."""
    modules = parse_jaas(text)
    if len(modules) != 1:
        raise JaasError(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    return modules[0]


def _module(first: tuple[str, str], tokens: Iterator[tuple[str, str]]) -> LoginModule:
    flag = next(tokens)
    if first[0] in _NO_TEXT or flag[0] in _NO_TEXT:
        raise JaasError("Login module control flag not specified in JAAS config")
    if flag[1].lower() not in CONTROL_FLAGS:
        raise JaasError(f"Invalid login module control flag {flag[1][:_LONGEST_SHOWN]!r} in JAAS config")
    return LoginModule(first[1], flag[1].lower(), _options(tokens))


def _options(tokens: Iterator[tuple[str, str]]) -> dict[str, str]:
    options: dict[str, str] = {}
    while (key := next(tokens)) != ("other", ";"):
        if key == _END:
            raise JaasError("JAAS config entry not terminated by semi-colon")
        if key[0] in _NO_TEXT:
            raise JaasError("Key of an option not specified in JAAS config")
        value = next(tokens) if next(tokens) == ("other", "=") else _END
        if value[0] in _NO_TEXT:
            raise JaasError(f"Value not specified for key {key[1][:_LONGEST_SHOWN]!r} in JAAS config")
        options[key[1]] = value[1]
    return options


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each token, and the end for ever."""
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "quoted":
            yield kind, _unquoted(match[0])
        elif kind not in ("space", "comment"):
            yield kind, match[0]
    while True:
        yield _END


def _unquoted(text: str) -> str:
    quote = text[0]
    inner = text[1:-1] if _is_closed(text, quote) else text[1:].removesuffix("\\")
    return _ESCAPE.sub(_character, inner)


def _is_closed(text: str, quote: str) -> bool:
    """Whether the last character is the closing quote, and not one that a backslash escapes."""
    if len(text) < 2 or text[-1] != quote:
        return False
    return (len(text[1:-1]) - len(text[1:-1].rstrip("\\"))) % 2 == 0


def _character(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)
