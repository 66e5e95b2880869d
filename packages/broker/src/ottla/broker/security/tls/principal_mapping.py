"""The rules of `ssl.principal.mapping.rules`: how the name in a certificate becomes a principal (KIP-371).

Patterns are matched by RE2, whose time is linear in the length of the name: the name comes from a client,
and a pattern as harmless as `(a+)+` takes Java, or Python's `re`, hours for 40 characters. RE2 knows no
look-around and no back-references in patterns; a rule with one is refused at the start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.client.config_definition import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

KEY: Final = "ssl.principal.mapping.rules"
MOST_RULES_CHARACTERS: Final = 65_536
MOST_NAME_CHARACTERS: Final = 16_384

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(?:[,\n]|$)")
_PARSER: Final = re.compile(_RULE)
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class NoRuleApplies(ValueError):
    """No rule makes a principal of a name."""


class Rule(NamedTuple):
    """One rule; `pattern` is None for DEFAULT, which takes the name as it is."""

    pattern: Any
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None if the rule does not match the whole name."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped: str = self.pattern.sub(_expand(self.replacement, self.pattern.groups), name)
        return {"L": mapped.lower, "U": mapped.upper}.get(self.case, mapped.__str__)()


def _expand(replacement: str, groups: int) -> Callable[[Any], str]:
    """Return the function that writes a replacement of Java: `$1` is a group, `\\x` is x."""

    def written(match: Any) -> str:
        def part(found: re.Match[str]) -> str:
            if found[1] is not None:
                return found[1]
            return _group(match, found[2], groups)

        return _REFERENCE.sub(part, replacement)

    return written


def _group(match: Any, digits: str, groups: int) -> str:
    """Return a group: the first digit's, and further digits only while such a group exists, as in Java."""
    if int(digits[0]) > groups:
        return f"${digits}"  # not a group: as it is
    count = 1
    while count < len(digits) and int(digits[: count + 1]) <= groups:
        count += 1
    return (match.group(int(digits[:count])) or "") + digits[count:]


def parse_rules(text: str) -> Sequence[Rule]:
    """Parse the rules of a listener. Raises ConfigError."""
    if len(text) > MOST_RULES_CHARACTERS:
        raise ConfigError(KEY, f"has {len(text)} characters, at most {MOST_RULES_CHARACTERS}")
    return [rule for part in _SPLITTER.finditer(text.strip()) if (rule := _parse(part[1])) is not None]


def _parse(text: str) -> Rule | None:
    match = _PARSER.match(text)
    if match is None or match.end() != len(text):
        raise ConfigError(KEY, f"must have rules like RULE:^CN=(.*?),.*$/$1/L or DEFAULT, not {text!r}")
    if match[1] is not None:
        return Rule(None, "", "")
    if match[2] is None:
        return None  # an empty rule
    return Rule(_compiled(match[2]), match[3], match[4])


def _compiled(pattern: str) -> Any:
    try:
        import re2
    except ImportError:
        raise ConfigError(
            KEY, "needs google-re2 for rules: pip install 'ottla-broker[principal-rules]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise ConfigError(KEY, f"has the pattern {pattern!r}, which RE2 cannot match: {reason}") from None


def principal_name(rules: Sequence[Rule], name: str) -> str:
    """Return what the first rule that applies makes of a name. Raises `NoRuleApplies`."""
    if len(name) <= MOST_NAME_CHARACTERS:
        for rule in rules:
            if (mapped := rule.apply(name)) is not None:
                return mapped
    raise NoRuleApplies(f"no rule of {KEY} applies to {name[:256]}")
