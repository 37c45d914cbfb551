"""The mutants of a kernel file: each replaces one span of its text, and moves no line.

A mutant is found by walking the syntax tree and written as text, because what runs must be what
Triton reads. What can't change a result is no mutant: docstrings, annotations and defaults, hints
and launch options that only make a kernel fast, tensor shapes (no other would compile), and what
merely refuses bad arguments (assertions, raises, checks called for nothing but that).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

COMPARISONS: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
INEQUALITIES: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
SYMBOLS: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
COMMUTE: Final = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)

FUNCTIONS: Final = {"minimum": "maximum", "maximum": "minimum", "min": "max", "exp": "exp2"}
DIMENSIONS: Final = {"H": "HV", "HV": "H", "K": "V", "V": "K"}
"""The field's names: heads for value heads, and keys for values."""
NARROWER: Final = {"int64": "int32"}
"""Of casts: offsets. Floats are sent through `float16` and back, so that types still fit."""

OPTIONS: Final = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "enable_fp_fusion"}
)
"""What a compiler does with these changes no result that is not a miscompilation."""
SHAPELESS: Final[Mapping[str, slice]] = {
    **dict.fromkeys(("arange", "zeros"), slice(0)),
    **dict.fromkeys(("reshape", "view", "broadcast_to", "permute"), slice(1)),
    "full": slice(1, 2),
    **dict.fromkeys(("multiple_of", "max_contiguous", "max_constancy"), slice(1)),
}
"""Arguments that are mutated where not all are: a tensor's shape is a power of two, or nothing
compiles; and a hint changes no result."""
LOOPS: Final = frozenset({"range", "static_range"})


class Mutant(msgspec.Struct, frozen=True):
    """One span of a file, and what takes its place."""

    file: str
    line: int
    column: int
    operator: str
    variant: int
    """Counts the mutants that share all of the above."""
    start: int
    end: int
    """Bytes of the file."""
    text: str
    first: int
    last: int
    """Lines of the statement; it is reached if one of them runs."""

    def of(self, source: str) -> str:
        """The file with this fault in it."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

    def change(self, source: str) -> str:
        """What becomes what, on one line, to be shown and not kept."""
        span = source.encode()[self.start : self.end].decode()
        return f"{_line(span) or 'nothing'}  ->  {_line(self.text) or 'nothing'}"


def _line(text: str) -> str:
    return " ".join(text.split())


class _Place(NamedTuple):
    """Where in the program a node stands."""

    first: int
    last: int
    device: bool = False
    """Inside a kernel or a function that kernels call."""
    strides: tuple[str, ...] = ()
    """Parameters of the function that are strides."""
    bound: frozenset[str] = frozenset()
    """Names that had a value before this statement."""


def functions(tree: ast.Module) -> frozenset[str]:
    """Names of the functions that a file defines at its top."""
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def mutants(file: str, source: str, known: frozenset[str] = frozenset()) -> list[Mutant]:
    """Every mutant of a file, in the order of its text.

    Args:
        file: its name, for the mutants to carry.
        source: its text.
        known: functions that other mutated files define; calls of those, and of its own, are
            mutated on the host too.
    """
    tree = ast.parse(source)
    finder = _Finder(file, source, known | functions(tree))
    finder.body(tree.body, _Place(0, 0))
    return sorted(finder.found.values(), key=lambda m: (m.start, m.end, m.operator, m.variant))


def same_program(source: str, mutant: Mutant) -> bool | None:
    """Whether the syntax tree is the same once constants are folded; None if it is not Python."""
    try:
        changed = ast.parse(mutant.of(source))
    except SyntaxError:
        return None
    return _folded(changed) == _folded(ast.parse(source))


def _folded(tree: ast.Module) -> str:
    return ast.dump(_Fold().visit(tree))


class _Fold(ast.NodeTransformer):
    """Replaces arithmetic on constants by its result."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Fold what is below first."""
        self.generic_visit(node)
        if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant):
            code = compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval")
            try:
                return ast.Constant(eval(code, {"__builtins__": {}}))  # noqa: S307 - constants
            except (ArithmeticError, TypeError, ValueError):
                return node
        return node


class _Finder:
    """Walks a syntax tree and keeps what it finds."""

    def __init__(self, file: str, source: str, known: frozenset[str]) -> None:
        self.file, self.known = file, known
        self.data = source.encode()
        lines = self.data.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))
        self.found: dict[tuple[int, int, str], Mutant] = {}
        self.variants: dict[tuple[int, int, str], int] = {}

    # Text.

    def span(self, node: Any) -> tuple[int, int]:
        """Bytes of a node."""
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: Any) -> str:
        """Text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def add(self, at: Any, operator: str, text: str, place: _Place) -> None:
        """A mutant that puts `text`, with as many lines as there were, in place of a node."""
        start, end = at if isinstance(at, tuple) else self.span(at)
        old = self.data[start:end].decode()
        missing = old.count("\n") - text.count("\n")
        if missing and not isinstance(at, tuple):
            text = f"({text}{chr(10) * missing})" if isinstance(at, ast.expr) else text
        text += "\n" * max(0, old.count("\n") - text.count("\n"))
        if text == old or (start, end, text) in self.found:
            return
        line = self.data.count(b"\n", 0, start) + 1
        column = start - self.starts[line - 1]
        variant = self.variants.get((line, column, operator), 0)
        self.variants[line, column, operator] = variant + 1
        self.found[start, end, text] = Mutant(
            self.file, line, column, operator, variant, start, end, text, place.first, place.last
        )

    # Statements.

    def body(self, statements: list[ast.stmt], place: _Place) -> None:
        """Statements one after the other, each knowing what names had a value before it."""
        for statement in statements:
            place = self.statement(statement, place)

    def statement(self, node: ast.stmt, place: _Place) -> _Place:
        """Mutants of a statement; returns where the next one stands."""
        here = place._replace(first=node.lineno, last=node.end_lineno or node.lineno)
        match node:
            case ast.FunctionDef():
                self.function(node, here)
            case ast.ClassDef() | ast.With():
                self.body(node.body, here)
            case ast.If() | ast.While():
                self.branch(node, here)
            case ast.For():
                self.loop(node, here)
            case ast.AugAssign():
                self.augmented(node, here)
            case ast.Assign() | ast.AnnAssign():
                self.assigned(node, here)
            case ast.Expr(value=ast.Call() as call):
                self.bare_call(node, call, here)
            case ast.Return():
                self.returned(node, here)
            case _:
                pass  # imports, assertions, raises
        return place._replace(bound=place.bound | _bound(node))

    def function(self, node: ast.FunctionDef, here: _Place) -> None:
        """Its body; decorators, annotations and defaults are left alone."""
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        device = here.device or any("jit" in ast.dump(d) for d in node.decorator_list)
        strides = tuple(name for name in names if name.startswith("stride"))
        inside = here._replace(device=device, strides=strides, bound=frozenset(names))
        self.body(node.body, inside)

    def branch(self, node: ast.If | ast.While, here: _Place) -> None:
        """A condition, and both its branches."""
        test = here._replace(last=node.test.end_lineno or node.lineno)
        if not self.refuses(node.body, here):
            self.condition(node.test, test)
        self.body(node.body, test)
        self.body(node.orelse, test)

    def refuses(self, statements: list[ast.stmt], here: _Place) -> bool:
        """Whether all that these can do is to raise."""
        return all(
            self.refuses(s.body, here) and self.refuses(s.orelse, here)
            if isinstance(s, ast.If | ast.For)
            else isinstance(s, ast.Raise | ast.Assert)
            or (isinstance(s, ast.Expr) and not self.acts(s.value, here))
            for s in statements
        )

    def acts(self, node: ast.expr, here: _Place) -> bool:
        """Whether a bare call is a store, a launch, or a call of a function that is mutated."""
        if not isinstance(node, ast.Call):
            return False
        name = _name(node.func)
        stores = here.device and name in {"store", "atomic_add"}
        return stores or isinstance(node.func, ast.Subscript) or name in self.known

    def loop(self, node: ast.For, here: _Place) -> None:
        """What is gone through, and what is done with it."""
        header = here._replace(last=node.iter.end_lineno or node.lineno)
        self.bounds(node.iter, header)
        self.expression(node.iter, header)
        inside = header._replace(bound=header.bound | _bound(node.target))
        self.body(node.body, inside)
        self.body(node.orelse, inside)

    def condition(self, node: ast.expr, here: _Place) -> None:
        """What decides: turned round, and mutated inside."""
        # Some comparisons are turned round by another sign, and a `not` by leaving it out.
        inequality = isinstance(node, ast.Compare) and isinstance(node.ops[0], INEQUALITIES)
        if inequality or not isinstance(node, ast.Compare | ast.UnaryOp):
            self.add(node, "condition-negated", f"not ({self.text(node)})", here)
        self.expression(node, here)

    def bounds(self, node: ast.expr, here: _Place) -> None:
        """A loop that runs once more, once less, or starts late."""
        if not (isinstance(node, ast.Call) and _name(node.func) in LOOPS and node.args):
            return
        first, last = node.args[0], node.args[-1 if len(node.args) < 3 else 1]
        for sign in "+-":
            if not isinstance(last, ast.Constant):
                self.add(last, "bound", f"({self.text(last)}) {sign} 1", here)
        if first is not last and not isinstance(first, ast.Constant):
            self.add(first, "bound", f"({self.text(first)}) + 1", here)

    def bare_call(self, node: ast.Expr, call: ast.Call, here: _Place) -> None:
        """Others than those that act only check, or only hint."""
        if self.acts(call, here):
            self.add(node, "statement-dropped", "pass", here)
            self.expression(call, here)

    def augmented(self, node: ast.AugAssign, here: _Place) -> None:
        """`x += y`: dropped, or done with another sign."""
        self.add(node, "statement-dropped", "pass", here)
        if (sign := ARITHMETIC.get(type(node.op))) is not None:
            between = self.span(node.target)[1], self.span(node.value)[0]
            old = self.data[slice(*between)].decode()
            symbol = old[: old.index("=")].strip()
            self.add(between, "arithmetic", old.replace(f"{symbol}=", f"{sign}=", 1), here)
        self.expression(node.value, here)

    def assigned(self, node: ast.Assign | ast.AnnAssign, here: _Place) -> None:
        """Another value; or, for a name that has one already, none."""
        if node.value is not None:
            self.expression(node.value, here)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(t, ast.Name) and t.id in here.bound for t in targets):
            self.add(node, "statement-dropped", "pass", here)

    def returned(self, node: ast.Return, here: _Place) -> None:
        """Another value; or a kernel that goes on where it had nothing more to do."""
        if node.value is not None:
            self.expression(node.value, here)
        elif here.device:
            self.add(node, "statement-dropped", "pass", here)

    # Expressions.

    def expression(self, node: ast.AST, here: _Place) -> None:
        """Mutants of an expression and of everything in it."""
        match node:
            case ast.Call():
                self.call(node, here)
                return
            case ast.JoinedStr() | ast.Lambda():
                return
            case ast.IfExp():
                self.condition(node.test, here)
                self.expression(node.body, here)
                self.expression(node.orelse, here)
                return
            case ast.Constant():
                self.constant(node, here)
            case ast.Name(id=name):
                self.name(node, name, here)
            case ast.Compare(ops=[operator]):
                self.sign(node.left, node.comparators[0], COMPARISONS[type(operator)], here)
            case ast.BinOp() | ast.BoolOp() | ast.UnaryOp():
                self.operation(node, here)
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.Slice | ast.comprehension):
                self.expression(child, here)

    def operation(self, node: ast.BinOp | ast.BoolOp | ast.UnaryOp, here: _Place) -> None:
        """Another operation, or none."""
        match node:
            case ast.BinOp():
                self.binary(node, here)
            case ast.BoolOp():
                sign = "or" if isinstance(node.op, ast.And) else "and"
                parts = f" {sign} ".join(f"({self.text(v)})" for v in node.values)
                self.add(node, "condition", parts, here)
            case ast.UnaryOp(operand=operand) if not isinstance(operand, ast.Constant):
                self.add(node, "sign-dropped", f"({self.text(operand)})", here)

    def constant(self, node: ast.expr, here: _Place) -> None:
        """One more and one less; a float doubled; a truth turned round."""
        match node:
            case ast.Constant(value=bool(value)):
                self.add(node, "constant", str(not value), here)
            case ast.Constant(value=int(value)):
                self.add(node, "off-by-one", str(value + 1), here)
                if value > 0:
                    self.add(node, "off-by-one", str(value - 1), here)
            case ast.Constant(value=float(value)):
                self.add(node, "constant", repr(2 * value if value else 1.0), here)
            case _:
                pass

    def name(self, node: ast.Name, name: str, here: _Place) -> None:
        """One stride for the next, one dimension for its neighbour."""
        if name in here.strides and len(here.strides) > 1:
            other = here.strides[(here.strides.index(name) + 1) % len(here.strides)]
            self.add(node, "stride-swap", other, here)
        if name in DIMENSIONS and DIMENSIONS[name] in here.bound:
            self.add(node, "dimension-swap", DIMENSIONS[name], here)

    def sign(self, left: ast.expr, right: ast.expr, sign: str, here: _Place) -> None:
        """Another comparison between the same two."""
        between = self.span(left)[1], self.span(right)[0]
        old = self.data[slice(*between)].decode()
        symbol = old.strip("() \t\r\n")
        self.add(between, "comparison", old.replace(symbol, sign, 1), here)

    def binary(self, node: ast.BinOp, here: _Place) -> None:
        """Another sign, operands the other way round, and half of a mask."""
        left, right = f"({self.text(node.left)})", f"({self.text(node.right)})"
        kind = type(node.op)
        if kind in ARITHMETIC:
            self.add(node, "arithmetic", f"({left} {ARITHMETIC[kind]} {right})", here)
        if kind in SYMBOLS and kind not in COMMUTE:
            self.add(node, "operand-swap", f"({right} {SYMBOLS[kind]} {left})", here)
        if kind is ast.BitAnd:
            self.add(node, "mask-part", left, here)
            self.add(node, "mask-part", right, here)

    def call(self, node: ast.Call, here: _Place) -> None:
        """What is particular to the function that is called, then what it is given."""
        name, arguments = _name(node.func), node.args
        self.particular(node, name, here)
        if isinstance(node.func, ast.Subscript) or name in self.known:
            for one, other in pairwise(arguments):
                self.swapped(one, other, "argument-swap", here)
        if isinstance(node.func, ast.Attribute | ast.Subscript):
            self.expression(node.func.value, here)
        if isinstance(node.func, ast.Subscript):
            self.expression(node.func.slice, here)
        for argument in arguments[SHAPELESS.get(name, slice(None))]:
            self.expression(argument, here)
        for keyword in node.keywords:
            if keyword.arg == "dtype":
                self.torch_dtype(keyword.value, here)
            elif keyword.arg not in OPTIONS:
                self.expression(keyword.value, here)

    def particular(self, node: ast.Call, name: str, here: _Place) -> None:
        """What is done to calls of some functions of Triton's alone."""
        match name, node.args:
            case (("load" | "store"), _):
                self.unmasked(node, here)
            case (("where" | "fma"), [_, one, other]):
                self.swapped(one, other, "operand-swap", here)
            case "to", [dtype]:
                self.cast(node, dtype, here)
            case _ if name in FUNCTIONS and here.device == isinstance(node.func, ast.Attribute):
                old = self.text(node.func)
                self.add(node.func, "function", old[: -len(name)] + FUNCTIONS[name], here)

    def unmasked(self, node: ast.Call, here: _Place) -> None:
        """Nothing is masked any more."""
        keywords = [k for k in node.keywords if k.arg in {"mask", "other"}]
        if not any(k.arg == "mask" for k in keywords):
            return
        everything = sorted([*node.args, *(k.value for k in node.keywords)], key=self.span)
        first = min(everything.index(k.value) for k in keywords)
        if first and everything[first:] == sorted((k.value for k in keywords), key=self.span):
            span = self.span(everything[first - 1])[1], self.span(everything[-1])[1]
            self.add(span, "mask-removed", "", here)

    def swapped(self, one: ast.expr, other: ast.expr, operator: str, here: _Place) -> None:
        """Two arguments the other way round."""
        between = self.data[self.span(one)[1] : self.span(other)[0]].decode()
        span = self.span(one)[0], self.span(other)[1]
        if ast.dump(one) != ast.dump(other):
            self.add(span, operator, self.text(other) + between + self.text(one), here)

    def cast(self, node: ast.Call, dtype: ast.expr, here: _Place) -> None:
        """Narrower, or through a narrower type and back."""
        name = _name(dtype)
        if name in NARROWER:
            self.add(dtype, "dtype", self.text(dtype)[: -len(name)] + NARROWER[name], here)
        if name == "float32":
            narrow = self.text(dtype)[: -len(name)] + "float16"
            end = self.span(node)[1]
            self.add((end, end), "dtype", f".to({narrow}).to({self.text(dtype)})", here)

    def torch_dtype(self, node: ast.expr, here: _Place) -> None:
        """Memory of the host that holds less."""
        if not here.device and _name(node) == "float32":
            self.add(node, "dtype", self.text(node)[: -len("float32")] + "float16", here)


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _bound(node: ast.AST) -> frozenset[str]:
    """Names that a statement, or one in it, gives a value."""
    return frozenset(
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    )
