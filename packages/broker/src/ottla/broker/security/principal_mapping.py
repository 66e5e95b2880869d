"""The rules by which names become principals: those in certificates (KIP-371), and those of Kerberos.

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
KERBEROS_KEY: Final = "sasl.kerberos.principal.to.local.rules"
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
        mapped = _replaced(self.pattern, self.replacement, name, repeats=True)
        return {"L": mapped.lower, "U": mapped.upper}.get(self.case, mapped.__str__)()


def _replaced(pattern: Any, replacement: str, text: str, *, repeats: bool) -> str:
    """Replace the first match of a pattern, or all, as Java does.

    RE2's own `sub` finds an empty match behind other text twice: of `$` at the end of a name, for example.
    """
    expand, parts, end, before = _expand(replacement, pattern.groups), [], 0, None
    for match in pattern.finditer(text):
        if match.span() == before:
            continue
        before = match.span()
        parts += [text[end : match.start()], expand(match)]
        end = match.end()
        if not repeats:
            break
    return "".join([*parts, text[end:]])


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
    return Rule(_compiled(KEY, match[2]), match[3], match[4])


def _compiled(key: str, pattern: str) -> Any:
    try:
        import re2
    except ImportError:
        raise ConfigError(
            key, "needs google-re2 for rules: pip install 'ottla-broker[principal-rules]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise ConfigError(key, f"has the pattern {pattern!r}, which RE2 cannot match: {reason}") from None


def principal_name(rules: Sequence[Rule], name: str) -> str:
    """Return what the first rule that applies makes of a name. Raises `NoRuleApplies`."""
    if len(name) <= MOST_NAME_CHARACTERS:
        for rule in rules:
            if (mapped := rule.apply(name)) is not None:
                return mapped
    raise NoRuleApplies(f"no rule of {KEY} applies to {name[:256]}")


# ---- Kerberos

_KERBEROS_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_KERBEROS_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)"
    r"|RULE:\[(?P<components>[0-9]{1,9}):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER: Final = re.compile(r"\$([0-9]*)")
_REPLACEMENT_PART: Final = re.compile(r"\\.|\$([0-9])|[\\$]", re.DOTALL)
_EXAMPLE: Final = "must have rules like RULE:[2:$1@$0](.*@EXAMPLE.COM)s/@.*// or DEFAULT"


class KerberosRule(NamedTuple):
    """One rule for names of so many components; `format` has them as `$1` and `$2`, and the realm as `$0`."""

    components: int
    format: str
    match: Any
    pattern: Any
    replacement: str
    repeats: bool
    case: str

    def apply(self, parts: Sequence[str]) -> str | None:
        """Return the local name, or None if the rule does not match realm and components."""
        if len(parts) - 1 != self.components:
            return None
        base = _PARAMETER.sub(lambda found: parts[int(found[1])], self.format)
        if self.match is not None and self.match.fullmatch(base) is None:
            return None
        if self.pattern is not None:
            base = _replaced(self.pattern, self.replacement, base, repeats=self.repeats)
        _check_is_simple(base)
        return {"L": base.lower, "U": base.upper}.get(self.case, base.__str__)()


class LocalNames(NamedTuple):
    """The rules of `sasl.kerberos.principal.to.local.rules`; None stands for DEFAULT."""

    rules: Sequence[KerberosRule | None]
    default_realm: str

    def name_of(self, principal: str) -> str:
        """Return the name that the first matching rule gives to `anna/host@REALM`. Raises `NoRuleApplies`."""
        match = _KERBEROS_NAME.fullmatch(principal) if len(principal) <= MOST_NAME_CHARACTERS else None
        if match is None:
            raise NoRuleApplies(f"{principal[:256]!r} is no name of Kerberos with at most two components")
        primary, instance, realm = match.groups()
        parts = [realm, primary] if instance is None else [realm, primary, instance]
        for rule in self.rules:
            name = self._default(parts) if rule is None else rule.apply(parts)
            if name is not None:
                return name
        raise NoRuleApplies(f"no rule of {KERBEROS_KEY} applies to {principal[:256]!r}")

    def _default(self, parts: Sequence[str]) -> str | None:
        if parts[0] != self.default_realm:
            return None
        _check_is_simple(parts[1])
        return parts[1]


def _check_is_simple(name: str) -> None:
    if not name or "/" in name or "@" in name:
        raise NoRuleApplies(f"a rule of {KERBEROS_KEY} gives {name[:256]!r}, which is no simple name")


def parse_kerberos_rules(texts: Sequence[str]) -> Sequence[KerberosRule | None]:
    """Parse rules, which Kafka's list separates by commas. Raises ConfigError."""
    return [_parse_kerberos(text) for text in texts]


def _parse_kerberos(text: str) -> KerberosRule | None:
    match = _KERBEROS_RULE.fullmatch(text)
    if match is None:
        raise ConfigError(KERBEROS_KEY, f"{_EXAMPLE}, not {text[:256]!r}")
    if match["default"]:
        return None
    components, replacement = int(match["components"]), match["replacement"] or ""
    for number in _PARAMETER.findall(match["format"]):
        if not number or int(number[:10]) > components:
            raise ConfigError(
                KERBEROS_KEY,
                f"must name components from $0 to ${components}, not ${number[:10]}, in {text[:256]!r}",
            )
    compiled = [
        None if match[name] is None else _compiled(KERBEROS_KEY, match[name]) for name in ("match", "pattern")
    ]
    if compiled[1] is not None:
        _check_replacement(replacement, compiled[1].groups, text)
    repeats, case = match["repeat"] is not None, match["case"] or ""
    return KerberosRule(components, match["format"], compiled[0], compiled[1], replacement, repeats, case)


def _check_replacement(replacement: str, groups: int, text: str) -> None:
    """Refuse a replacement that Java could not write, at the start and not at a login."""
    for part in _REPLACEMENT_PART.finditer(replacement):
        if part[0] in ("$", "\\") or (part[1] is not None and int(part[1]) > groups):
            raise ConfigError(KERBEROS_KEY, f"has {part[0]} for no group of its pattern, in {text[:256]!r}")
