"""Counts of what makes the code long to read: ``python tests/measurements/structure.py [ROOT]``.

* pass-through: a function whose whole body is one call that hands on its parameters or their members.
* small with one caller: a function of at most four lines, without its docstring, whose name stands in one other place.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

PACKAGES: Final = ("auditord", "builtin_plugins/auditord_builtin", "hookspecs/auditord_hookspecs")
SMALL_FUNCTION: Final = 4
SMALL_MODULE: Final = 30
QUESTIONS: Final = frozenset({"What", "Who", "Whoever", "Whose", "Whether", "How", "Where", "When", "Which"})

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Documented: TypeAlias = ast.Module | ast.ClassDef | Function


def modules(root: Path) -> Iterator[Path]:
    """Every module of the product."""
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def body_of(function: Function) -> Sequence[ast.stmt]:
    """The statements behind the docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def is_pass_through(function: Function) -> bool:
    """Tell a function that only hands its parameters on."""
    match body_of(function):
        case [ast.Return(value=value) | ast.Expr(value=value)]:
            call = value.value if isinstance(value, ast.Await) else value
        case _:
            return False
    if not isinstance(call, ast.Call):
        return False
    parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(_handed_on(each, parameters) for each in given)


def _handed_on(value: ast.expr, parameters: set[str]) -> bool:
    """Tell a parameter, or a member of one, from what is made here."""
    while isinstance(value, ast.Attribute | ast.Starred):
        value = value.value
    return isinstance(value, ast.Name) and value.id in parameters


def is_small(function: Function) -> bool:
    """Tell a function of a few lines from others."""
    body = body_of(function)
    return bool(body) and _lines(function, body) <= SMALL_FUNCTION


def _lines(function: Function, body: Sequence[ast.stmt]) -> int:
    """The lines of signature and body."""
    documented = body[0] is not function.body[0]
    docstring = (function.body[0].end_lineno or 0) - function.body[0].lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def asking(node: Documented) -> int:
    """The number of docstrings directly below a node, of itself and of its variables, that begin with a question."""
    count = 0
    for statement in node.body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                count += bool(text.split()) and text.split()[0] in QUESTIONS
            case _:
                continue
    return count


def measured(root: Path) -> Counter[str]:
    """All counts of a checkout."""
    counts, names, small = Counter[str](), Counter[str](), list[str]()
    for path in modules(root):
        text = path.read_text()
        lines = text.count("\n")
        counts["lines"] += lines
        counts["modules"] += 1
        counts["modules under 30 lines"] += lines < SMALL_MODULE and path.name not in {"__init__.py", "__main__.py"}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Documented):
                counts["docstrings that ask"] += asking(node)
            if isinstance(node, Function):
                counts["functions"] += 1
                counts["pass-through functions"] += is_pass_through(node)
                if is_small(node) and not node.name.startswith("__") and not node.decorator_list:
                    small.append(node.name)
            elif isinstance(node, ast.Name):
                names[node.id] += 1
            elif isinstance(node, ast.Attribute):
                names[node.attr] += 1
    defined = Counter(small)
    counts["functions of four lines with one caller"] = sum(defined[name] == 1 and names[name] == 1 for name in small)
    return counts


if __name__ == "__main__":
    counted = measured(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    sys.stdout.writelines(f"{count:>7} {name}\n" for name, count in counted.items())
