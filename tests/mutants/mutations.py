"""Small mistakes that can be planted in a module: text in, a list of changes out.

A change is one that a test of behaviour can notice: docstrings, annotations, asserts, texts of
errors and logs, f-strings and the tuned numbers of `Final` tables are left alone. Runs nothing:
tests/mutants/trial.py does.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
METHODS: Final = {
    "appendleft": "append",
    "popleft": "pop",
    "startswith": "endswith",
    "endswith": "startswith",
}
# What a function that promises this type may return instead.
RETURNS: Final = {"bool": (True, False), "int": (0,), "str": ("",), "bytes": (b"",)}
# Calls whose arguments are texts, and whose absence no user of the code notices.
TELLING: Final = frozenset(
    {"debug", "info", "warning", "error", "exception", "critical", "warn", "print"}
)
SKIPPED_FUNCTIONS: Final = frozenset({"__repr__", "__str__"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes from `start` to `end` of a file become `text`."""

    path: str
    line: int
    last_line: int
    start: int
    end: int
    text: str
    change: str

    def applied(self, source: str) -> str:
        """Return the module with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.text.encode() + raw[self.end :]).decode()


def mutants(path: str, source: str) -> list[Mutant]:
    """Return every change of a module, in the order of its lines."""
    found = _Finder(path, source)
    found.body(ast.parse(source))
    unique = {(one.start, one.end, one.text): one for one in found.mutants}
    return sorted(unique.values(), key=lambda one: (one.start, one.end, one.text))


class _Finder:
    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._raw = source.encode()
        self._lines = [0]
        for line in self._raw.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._returns = ""
        self.mutants: list[Mutant] = []

    def body(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None and "Final" not in ast.unparse(node.annotation):
                self._visit(node.value)
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                self._visit(statement)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        elif not _is_left_alone(node):
            for text, change in _changes(node, self._returns):
                self._add(node, text, change)
            self.body(node)

    def _function(self, node: Function) -> None:
        if node.name in SKIPPED_FUNCTIONS:
            return
        outer, self._returns = self._returns, ast.unparse(node.returns) if node.returns else ""
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self._visit(default)
        for statement in node.body:
            self._visit(statement)
        self._returns = outer

    def _add(self, node: ast.AST, text: str, change: str) -> None:
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[node.end_lineno - 1] + node.end_col_offset
        last = node.end_lineno
        self.mutants.append(Mutant(self._path, node.lineno, last, start, end, text, change))


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(
        node, ast.JoinedStr | ast.Assert | ast.Raise | ast.Import | ast.ImportFrom | ast.pattern
    ):
        return True
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id.startswith("__") for t in node.targets)
    return isinstance(node, ast.Call) and _tells(node)


def _tells(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr in TELLING
    return isinstance(function, ast.Name) and function.id in TELLING


def _changes(node: ast.AST, returns: str) -> Iterator[tuple[str, str]]:
    """Yield (new text, what changes) for this one node."""
    if isinstance(node, ast.stmt):
        yield from _statement_changes(node, returns)
        return
    if not isinstance(node, ast.expr):
        return
    was = _short(node)
    for new in _expressions(node):
        text = ast.unparse(new)
        atom = isinstance(new, ast.Name | ast.Attribute | ast.Call)
        yield text if atom else f"({text})", f"{was} -> {_short(new)}"


def _statement_changes(node: ast.stmt, returns: str) -> Iterator[tuple[str, str]]:
    was = _short(node)
    if isinstance(node, ast.Break):
        yield "continue", "break -> continue"
    elif isinstance(node, ast.Continue):
        yield "break", "continue -> break"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_constant(node.value):
        for value in RETURNS.get(returns, ()):
            if ast.unparse(node.value) != repr(value):
                yield f"return {value!r}", f"{was} -> return {value!r}"
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        new = copy.deepcopy(node)
        new.op = OPERATORS[type(node.op)]()
        yield ast.unparse(new), f"{was} -> {_short(new)}"
    if _can_be_dropped(node):
        yield "pass", f"drop {was}"


def _can_be_dropped(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Call) and not _tells(value)
    if isinstance(node, ast.Delete):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AugAssign):
        targets = [node.target]
    return bool(targets) and all(isinstance(t, ast.Attribute | ast.Subscript) for t in targets)


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[at] = COMPARISONS[type(operator)]()
            yield new
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
        for at in range(len(node.values)):
            rest = node.values[:at] + node.values[at + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if not any(_is_text(side) for side in (node.left, node.right)):
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in NAMES:
        yield ast.Call(ast.Name(NAMES[function.id]), node.args, node.keywords)
    elif isinstance(function, ast.Attribute) and function.attr in METHODS:
        method = ast.Attribute(function.value, METHODS[function.attr])
        yield ast.Call(method, node.args, node.keywords)
    elif isinstance(function, ast.Attribute) and function.attr == "append":
        first = ast.Attribute(function.value, "insert")  # lists and deques both have it
        yield ast.Call(first, [ast.Constant(0), *node.args], node.keywords)


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr)


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
