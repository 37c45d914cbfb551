"""Every mutant is a small fault, and nothing but that.

Mutants are found in made-up kernels of a few lines, where a person sees what there is to break, and
in our own kernels, where there are thousands. Each must be Python, differ from the original once
constants are folded, and leave every line where it is; and what cannot change a result must have
no mutant at all.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

import ringfold.fuzz
from ringfold.fuzz.mutation.operators import Mutant, functions, mutants, same_program

KERNELS: Final = Path(ringfold.fuzz.__path__[0]).resolve().parent / "kernels"
HEAD: Final = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


def changes(body: str, head: str = "def kernel(p, n, stride_a, stride_b, H, HV):") -> list[str]:
    """What is done to a kernel with this body: operator, then the changed lines without indent."""
    source = f"{HEAD}{head}\n{body}\n"
    original = source.splitlines()
    found = []
    for mutant in mutants("file.py", source):
        changed = mutant.of(source).splitlines()
        assert len(changed) == len(original)
        lines = [new.strip() for new, old in zip(changed, original, strict=True) if new != old]
        found.append(f"{mutant.operator}: {' / '.join(lines)}")
    return found


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("    x = n < 4", "comparison: x = n <= 4"),
        ("    x = n == p", "comparison: x = n != p"),
        ("    x = n + 4", "off-by-one: x = n + 5"),
        ("    x = n + 4", "off-by-one: x = n + 3"),
        ("    x = n + p", "arithmetic: x = ((n) - (p))"),
        ("    x = n - p", "operand-swap: x = ((p) - (n))"),
        ("    x = n & p", "mask-part: x = (n)"),
        ("    x = n & p", "mask-part: x = (p)"),
        ("    x = -n", "sign-dropped: x = (n)"),
        ("    x = not n", "sign-dropped: x = (n)"),
        ("    x = n and p", "condition: x = (n) or (p)"),
        ("    x = 0.5", "constant: x = 1.0"),
        ("    x = tl.load(p, mask=n < H, other=0.0)", "mask-removed: x = tl.load(p)"),
        ("    tl.store(p, n)", "statement-dropped: pass"),
        ("    n += p", "statement-dropped: pass"),
        ("    n += p", "arithmetic: n -= p"),
        ("    n = p", "statement-dropped: pass"),
        ("    x = tl.where(n, p, H)", "operand-swap: x = tl.where(n, H, p)"),
        ("    x = n.to(tl.int64)", "dtype: x = n.to(tl.int32)"),
        ("    x = n.to(tl.float32)", "dtype: x = n.to(tl.float32).to(tl.float16).to(tl.float32)"),
        ("    x = n * stride_a", "stride-swap: x = n * stride_b"),
        ("    x = p + H", "dimension-swap: x = p + HV"),
        ("    x = tl.minimum(n, p)", "function: x = tl.maximum(n, p)"),
        ("    if n:\n        return", "condition-negated: if not (n):"),
        ("    if n:\n        return", "statement-dropped: pass"),
        ("    for i in range(p, n):\n        x = i", "bound: for i in range(p, (n) + 1):"),
        ("    for i in range(p, n):\n        x = i", "bound: for i in range(p, (n) - 1):"),
        ("    for i in range(p, n):\n        x = i", "bound: for i in range((p) + 1, n):"),
    ],
)
def test_an_operator_makes_its_fault(body: str, wanted: str) -> None:
    """One line becomes another."""
    assert wanted in changes(body)


@pytest.mark.parametrize(
    "body",
    [
        '    """Text about 1 + 2."""',
        "    x: tl.constexpr = n",
        "    x = tl.arange(0, 16)",
        "    x = tl.zeros([16, 32], tl.float32)",
        "    tl.debug_barrier()",
        "    tl.static_assert(n > 4)",
        "    assert n > 4, 'too few'",
        "    x = tl.multiple_of(n, 16)",
        "    if n > 4:\n        raise ValueError(n + 1)",
    ],
)
def test_what_changes_no_result_has_no_mutant(body: str) -> None:
    """Texts, annotations, shapes, hints, and what only refuses."""
    assert changes(body) == []


def test_a_host_function_is_mutated_where_it_launches() -> None:
    """Arguments of a launch are swapped and dropped; options, defaults and mere checks are not."""
    source = (
        f"{HEAD}def kernel(p, n):\n    pass\n\n\n"
        "def launch(p, n: int = 4):\n"
        "    check_shape('p', p, n + 1)\n"
        "    if n < 1:\n"
        "        check_shape('n', n)\n"
        "    kernel[(n,)](p, n, num_warps=4)\n"
    )

    found = [
        (mutant.line, mutant.operator, mutant.of(source).splitlines()[mutant.line - 1].strip())
        for mutant in mutants("file.py", source)
    ]

    assert found == [
        (14, "statement-dropped", "pass"),
        (14, "argument-swap", "kernel[(n,)](n, p, num_warps=4)"),
    ]


def test_lines_stay_where_they_are() -> None:
    """Also where a mutant replaces several lines by fewer."""
    load = ["x = tl.load(", "    p", "    + n,", "    mask=n < H,", "    other=0.0,", ")", "n = 1"]

    found = changes("\n".join(f"    {line}" for line in load))

    assert any(change.startswith("mask-removed") for change in found)


def sources() -> dict[str, str]:
    """Our kernel files."""
    texts = {path.name: path.read_text("utf-8") for path in sorted(KERNELS.glob("*.py"))}
    return {name: text for name, text in texts.items() if "@triton.jit" in text}


def everything() -> list[tuple[str, Mutant]]:
    """Every mutant of our kernels, with the text it belongs to."""
    texts = sources()
    known = frozenset[str]().union(*(functions(ast.parse(text)) for text in texts.values()))
    return [(text, m) for name, text in texts.items() for m in mutants(name, text, known)]


def test_every_mutant_of_our_kernels_is_another_program() -> None:
    """Every fortieth is parsed: Python, another program, as many lines, and one name for each."""
    every = everything()

    assert len(every) > 1500
    assert len({(m.file, m.line, m.column, m.operator, m.variant) for _, m in every}) == len(every)
    for text, mutant in every[::40]:
        assert same_program(text, mutant) is False, mutant
        assert mutant.of(text).count("\n") == text.count("\n")
        assert mutant.first <= mutant.line <= mutant.last


def test_what_is_said_of_a_mutant_leaves_the_text_out() -> None:
    """A survivor is named by place and operator; the change is made for the terminal alone."""
    source = f"{HEAD}def kernel(p):\n    x = p + 1\n"
    mutant = next(m for m in mutants("file.py", source) if m.operator == "arithmetic")

    assert (mutant.line, mutant.column, mutant.variant) == (7, 8, 0)
    assert mutant.change(source) == "p + 1  ->  ((p) - (1))"


def test_constants_are_folded_before_programs_are_compared() -> None:
    """`2 * 4` is `8`, and `n + 1` is not `n`."""
    source = "x = 2 * 4\n"
    folded = Mutant("f", 1, 4, "", 0, 4, 9, "8", 1, 1)

    assert same_program(source, folded) is True
    assert same_program(source, Mutant("f", 1, 4, "", 0, 4, 9, "9", 1, 1)) is False
    assert same_program(source, Mutant("f", 1, 4, "", 0, 4, 9, "(", 1, 1)) is None
