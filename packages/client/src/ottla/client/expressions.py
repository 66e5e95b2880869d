"""Expressions over records: a part of CEL, read into a tree of known operations. Pure.

`value.amount > 100 && key.startsWith("eu-")` is never run as Python: each name, operator and function is one
of those that stand here, and all are bounded by the size of the record. An operation that makes no sense for
a record (a field that is missing, a text that is compared with a number) raises Undecided, which `||` and
`&&` absorb where the other side decides, as in CEL.

It has over 500 lines because the grammar, its nodes and their operations are one list: what may be run.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

NAMES: Final = ("key", "value", "headers", "partition", "offset", "time_ms", "kind")
"""The names that an expression may use of a record."""
MOST_LETTERS: Final = 2_000
_MOST_TOKENS: Final = 400
_DEEPEST: Final = 40
_SHORTEST_NEEDLE: Final = 3
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')|(?P<sign>&&|\|\||[=!<>]=|[-+*/%!<>()\[\].,]))"""
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

Names = Mapping[str, Any]
Run = Callable[[Names], Any]
Matcher = Callable[[str], Callable[[str], bool]]


class BadExpression(ValueError):
    """An expression cannot be read; the message says where and why."""


class Undecided(Exception):
    """An operation makes no sense for a record."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation: how it is run, the names that it reads, and texts without which it is not true.

    `is_field` is true of a record's own fields, `literal` of a text that stands in the expression.
    """

    run: Run
    names: frozenset[str] = frozenset()
    needles: frozenset[str] = frozenset()
    is_field: bool = False
    literal: str | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """A whole expression; `needles` are texts without which no record can match."""

    node: Node

    @property
    def names(self) -> frozenset[str]:
        """The names of a record that it reads."""
        return self.node.names

    @property
    def needles(self) -> frozenset[str]:
        """Texts that a record must hold."""
        return self.node.needles

    def matches(self, names: Names) -> bool:
        """Whether it is true of a record. Raises Undecided."""
        try:
            return _truth(self.node.run(names))
        except (ArithmeticError, RecursionError):
            raise Undecided from None


def expression(text: str, matcher: Matcher) -> Expression:
    """Return the tree of an expression; `matcher` compiles patterns of `matches`. Raises BadExpression."""
    if len(text) > MOST_LETTERS:
        raise BadExpression(f"an expression has at most {MOST_LETTERS} letters")
    reader = _Reader(_tokens(text), matcher)
    node = reader.either()
    reader.end()
    return Expression(node)


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at, text = [], 0, text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or token.lastgroup is None:
            raise BadExpression(f"{text[at : at + 20].strip()!r} cannot be read")
        found.append((token.lastgroup, token[token.lastgroup]))
        at = token.end()
    if len(found) > _MOST_TOKENS:
        raise BadExpression(f"an expression has at most {_MOST_TOKENS} words and signs")
    return found


class _Reader:
    """Reads tokens by descent, one method for each rank of operators."""

    def __init__(self, tokens: list[tuple[str, str]], matcher: Matcher) -> None:
        self._tokens = tokens
        self._matcher = matcher
        self._at = 0
        self._depth = 0
        self._bound: list[str] = []

    def end(self) -> None:
        """Raise BadExpression where something is left."""
        if self._at < len(self._tokens):
            raise BadExpression(f"{self._tokens[self._at][1]!r} is not expected there")

    def either(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadExpression(f"an expression is at most {_DEEPEST} levels deep")
        node = self._both()
        while self._take("||"):
            node = _either(node, self._both())
        self._depth -= 1
        return node

    def _both(self) -> Node:
        node = self._relation()
        while self._take("&&"):
            node = _both(node, self._relation())
        return node

    def _relation(self) -> Node:
        left = self._sum()
        if sign := self._take("==", "!=", "<=", ">=", "<", ">", "in"):
            return _relation(sign, left, self._sum())
        return left

    def _sum(self) -> Node:
        node = self._product()
        while sign := self._take("+", "-"):
            node = _applied(_ARITHMETIC[sign], node, self._product())
        return node

    def _product(self) -> Node:
        node = self._signed()
        while sign := self._take("*", "/", "%"):
            node = _applied(_ARITHMETIC[sign], node, self._signed())
        return node

    def _signed(self) -> Node:
        signs = []
        while sign := self._take("!", "-"):
            signs.append(sign)
        node = self._field()
        for sign in reversed(signs):
            node = _applied(_negated if sign == "-" else _opposite, node)
        return node

    def _field(self) -> Node:
        node = self._atom()
        while sign := self._take(".", "["):
            if sign == "[":
                inner = self.either()
                self._must("]")
                node = _member(node, inner, is_field=node.is_field)
            else:
                node = self._dotted(node)
        return node

    def _dotted(self, node: Node) -> Node:
        name = self._name()
        if not self._take("("):
            return _member(node, _constant(name), is_field=node.is_field)
        if name in ("exists", "all"):
            return self._quantified(name, node)
        return self._method(name, node, self._arguments())

    def _method(self, name: str, node: Node, given: list[Node]) -> Node:
        if name == "matches" and len(given) == 1 and given[0].literal is not None:
            found = self._matcher(given[0].literal)
            return _applied(lambda text: found(_text(text)), node)
        if name not in _METHODS or len(given) != _METHODS[name][1]:
            known = ", ".join(sorted((*_METHODS, "matches", "exists", "all")))
            raise BadExpression(f"there is no .{name} with {len(given)} values; there are {known}")
        applied = _applied(_METHODS[name][0], node, *given)
        if name in ("contains", "startsWith", "endsWith"):
            return _needing(applied, node, given[0])
        return applied

    def _quantified(self, name: str, node: Node) -> Node:
        variable = self._name()
        self._must(",")
        self._bound.append(variable)
        body = self.either()
        self._bound.pop()
        self._must(")")
        judge = any if name == "exists" else all

        def run(names: Names) -> bool:
            return judge(_truth(body.run({**names, variable: item})) for item in _items(node.run(names)))

        return Node(run, node.names | (body.names - {variable}))

    def _atom(self) -> Node:
        if self._take("("):
            node = self.either()
            self._must(")")
            return node
        if self._take("["):
            return _list(self._arguments("]"))
        kind, text = self._next()
        match kind:
            case "number":
                return _constant(int(text) if text.isdigit() else float(text))
            case "text":
                return _constant(_unescaped(text[1:-1]))
            case "name":
                return self._named(text)
        raise BadExpression(f"{text!r} is not expected there")

    def _named(self, name: str) -> Node:
        if name in _CONSTANTS:
            return _constant(_CONSTANTS[name])
        if self._take("("):
            if name not in _FUNCTIONS:
                raise BadExpression(f"there is no {name}(); there are {', '.join(sorted(_FUNCTIONS))}")
            given = self._arguments()
            if len(given) != 1:
                raise BadExpression(f"{name}() takes one value, not {len(given)}")
            return _has(given[0]) if name == "has" else _applied(_FUNCTIONS[name], given[0])
        if name not in NAMES and name not in self._bound:
            raise BadExpression(f"there is no {name!r}; a record has {', '.join(NAMES)}")
        return Node(lambda names: names[name], frozenset({name}), is_field=name not in self._bound)

    def _arguments(self, end: str = ")") -> list[Node]:
        found: list[Node] = []
        while not self._take(end):
            if found:
                self._must(",")
            found.append(self.either())
        return found

    def _take(self, *texts: str) -> str:
        """Return the next token if it is one of these, and go on; otherwise an empty text."""
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if text in texts and kind != "text":
                self._at += 1
                return text
        return ""

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise BadExpression("the expression ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _must(self, text: str) -> None:
        if not self._take(text):
            at = self._tokens[self._at][1] if self._at < len(self._tokens) else "the end"
            raise BadExpression(f"{text!r} is missing before {at!r}")

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise BadExpression(f"a name is expected, not {text!r}")
        return text


# --- nodes


def _constant(value: Any) -> Node:
    return Node(lambda _: value, literal=value if isinstance(value, str) else None)


def _applied(operation: Callable[..., Any], *nodes: Node) -> Node:
    return Node(
        _run_of(operation, [node.run for node in nodes]),
        frozenset[str]().union(*(node.names for node in nodes)),
    )


def _run_of(operation: Callable[..., Any], runs: list[Run]) -> Run:
    """Return the run of an operation; that of one or two values, which most have, takes no list of them."""
    match runs:
        case [only]:
            return lambda names: operation(only(names))
        case [left, right]:
            return lambda names: operation(left(names), right(names))
    return lambda names: operation(*[part(names) for part in runs])


def _list(nodes: list[Node]) -> Node:
    return _applied(lambda *items: list(items), *nodes)


def _member(node: Node, key: Node, *, is_field: bool) -> Node:
    if (name := key.literal) is not None:
        return Node(_field_run(node.run, name), node.names, is_field=is_field)
    return Node(
        lambda names: _item(node.run(names), key.run(names)), node.names | key.names, is_field=is_field
    )


def _field_run(holder_run: Run, name: str) -> Run:
    def run(names: Names) -> Any:
        holder = holder_run(names)
        return holder[name] if type(holder) is dict and name in holder else _item(holder, name)

    return run


def _has(node: Node) -> Node:
    def run(names: Names) -> bool:
        try:
            node.run(names)
        except Undecided:
            return False
        return True

    return Node(run, node.names)


def _either(left: Node, right: Node) -> Node:
    return Node(lambda names: _decided(left, right, names, decisive=True), left.names | right.names)


def _both(left: Node, right: Node) -> Node:
    return Node(
        lambda names: _decided(left, right, names, decisive=False),
        left.names | right.names, left.needles | right.needles,
    )  # fmt: skip


def _decided(left: Node, right: Node, names: Names, *, decisive: bool) -> bool:
    """Return the side that decides; a side that is undecided counts where the other does not decide."""
    try:
        if _truth(left.run(names)) is decisive:
            return decisive
    except Undecided:
        if _truth(right.run(names)) is decisive:
            return decisive
        raise
    return _truth(right.run(names))


def _relation(sign: str, left: Node, right: Node) -> Node:
    node = _applied(_RELATIONS[sign], left, right)
    if sign == "==":
        return _needing(_needing(node, left, right), right, left)
    return node


def _needing(node: Node, field: Node, text: Node) -> Node:
    """Return a node that is true only where a field of the record holds a text.

    Such texts are found in a record's bytes as they are, unless JSON has written their letters as escapes.
    """
    needle = text.literal
    if not field.is_field or "kind" in field.names or needle is None:
        return node
    if len(needle) < _SHORTEST_NEEDLE or not re.fullmatch(r"[A-Za-z0-9_.:@ -]+", needle):
        return node
    return Node(node.run, node.names, node.needles | {needle})


# --- operations


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Undecided
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Undecided
    return value


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Undecided
    return value


def _items(value: Any) -> list[Any]:
    if isinstance(value, list | dict):
        return list(value)
    raise Undecided


def _item(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict) and isinstance(key, str | int) and key in holder:
        return holder[key]
    if isinstance(holder, list) and isinstance(key, int) and 0 <= key < len(holder):
        return holder[key]
    raise Undecided


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) is not isinstance(right, bool):
        return False  # in Python True is 1
    try:
        return bool(left == right)
    except RecursionError:
        raise Undecided from None


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def run(left: Any, right: Any) -> bool:
        if type(left) in _PLAIN_NUMBERS and type(right) in _PLAIN_NUMBERS:
            return compare(left, right)
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        return compare(_number(left), _number(right))

    return run


_PLAIN_NUMBERS: Final = frozenset({int, float})


def _within(item: Any, holder: Any) -> bool:
    return any(_equal(item, known) for known in _items(holder))


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    return _number(left) + _number(right)


def _over(left: Any, right: Any) -> int | float:
    above, below = _number(left), _number(right)
    if below == 0:
        raise Undecided
    if isinstance(above, int) and isinstance(below, int):
        return abs(above) // abs(below) * (1 if (above < 0) == (below < 0) else -1)
    return _finite(above, below)


def _finite(above: int | float, below: int | float) -> float:
    try:
        return above / below
    except OverflowError:
        raise Undecided from None


def _rest(left: Any, right: Any) -> int:
    above, below = _number(left), _number(right)
    if isinstance(above, float) or isinstance(below, float) or below == 0:
        raise Undecided
    rest = abs(above) % abs(below)
    return -rest if above < 0 else rest


def _negated(value: Any) -> int | float:
    return -_number(value)


def _opposite(value: Any) -> bool:
    return not _truth(value)


def _size(value: Any) -> int:
    if isinstance(value, str | list | dict | bytes):
        return len(value)
    raise Undecided


def _to_int(value: Any) -> int:
    try:
        return int(_text(value)) if isinstance(value, str) else int(_number(value))
    except (ValueError, OverflowError):
        raise Undecided from None


def _to_double(value: Any) -> float:
    try:
        return float(value) if isinstance(value, str) else float(_number(value))
    except (ValueError, OverflowError):
        raise Undecided from None


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(_number(value))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)


_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": _plus, "-": lambda left, right: _number(left) - _number(right),
    "*": lambda left, right: _number(left) * _number(right), "/": _over, "%": _rest,
}  # fmt: skip
_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": _equal, "!=": lambda left, right: not _equal(left, right), "in": _within,
    "<": _ordered(operator.lt), ">": _ordered(operator.gt),
    "<=": _ordered(operator.le), ">=": _ordered(operator.ge),
}  # fmt: skip
_METHODS: Final[Mapping[str, tuple[Callable[..., Any], int]]] = {
    "contains": (lambda text, part: _text(part) in _text(text), 1),
    "startsWith": (lambda text, part: _text(text).startswith(_text(part)), 1),
    "endsWith": (lambda text, part: _text(text).endswith(_text(part)), 1),
    "lowerAscii": (lambda text: _text(text).lower(), 0),
    "size": (_size, 0),
}
_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "has": bool, "size": _size, "int": _to_int, "double": _to_double, "string": _to_string,
}  # fmt: skip
