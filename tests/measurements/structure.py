"""Counts of what makes the code long to read, and with -v the places: ``python tests/measurements/structure.py [-v]``.

* pass-through: a function whose whole body is one call, of a dotted name, that hands on parameters or their members.
* small with one caller: a function of at most four lines, without its docstring, whose name stands in one other place.

Of both, those for which there is a reason are counted apart, and -v says it: ``contract`` (Python, a protocol, an
abstract class or the class that it extends asks for such a method), ``property``, ``cached``, ``callback`` (handed on
as a value, never called by its name), ``tested`` (tests call it by its name); and of small functions ``interface``
(another module uses it).
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
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
    if not isinstance(call, ast.Call) or not _is_dotted_name(call.func):
        return False
    parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(_handed_on(each, parameters) for each in given)


def _handed_on(value: ast.expr, parameters: set[str]) -> bool:
    """Tell a parameter, or a member of one, from what is made here."""
    while isinstance(value, ast.Attribute | ast.Starred):
        value = value.value
    return isinstance(value, ast.Name) and value.id in parameters


def _is_dotted_name(value: ast.expr) -> bool:
    """Tell what is there already from what another call or an operator makes."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name)


def is_small(function: Function) -> bool:
    """Tell a function of a few lines from others."""
    body = body_of(function)
    return bool(body) and _lines(function, body) <= SMALL_FUNCTION


def _lines(function: Function, body: Sequence[ast.stmt]) -> int:
    """The lines of signature and body."""
    documented = body[0] is not function.body[0]
    docstring = (function.body[0].end_lineno or 0) - function.body[0].lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def docstrings_that_ask(root: Path) -> int:
    """The number of docstrings in the tests and their helpers that begin with a question."""
    nodes = (node for path in (root / "tests").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return sum(asking(node) for node in nodes if isinstance(node, Documented))


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


class Structure:
    """All that is counted in a checkout, with the places."""

    def __init__(self, root: Path) -> None:
        """Read every module of the product."""
        self._root = root
        self.lines = self.modules = self.functions = self.docstrings_that_ask = 0
        self.places: defaultdict[str, list[str]] = defaultdict(list)
        self._names, self._small = Counter[str](), defaultdict[str, list[str]](list)
        self._called, self._contract = set[str](), set[str]()
        self._modules = defaultdict[str, set[str]](set)
        self._properties, self._cached, self._tested = set[str](), set[str](), set[str]()
        for path in modules(root):
            self._read(path)
        self.places["functions of four lines with one caller"] = [
            place for name, (place, *others) in self._small.items() if not others and self._names[name] == 1
        ]
        self._small_places = frozenset(self.places["functions of four lines with one caller"])

    def _read(self, path: Path) -> None:
        text = path.read_text()
        self.modules += 1
        self.lines += (lines := text.count("\n"))
        if lines < SMALL_MODULE and path.name not in {"__init__.py", "__main__.py"}:
            self.places["modules under 30 lines"].append(f"{path}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Documented):
                self.docstrings_that_ask += asking(node)
            if isinstance(node, Function):
                self._count(node, f"{path}:{node.lineno} {node.name}")
            if isinstance(node, ast.ClassDef):
                self._contract |= {each.name for each in node.body if isinstance(each, Function) and _asked(node, each)}
            if isinstance(node, ast.Call):
                self._called.update(_named(node.func))
            self._names.update(_named(node))
            for name in _named(node):
                self._modules[name].add(f"{path}")

    def _count(self, function: Function, place: str) -> None:
        self.functions += 1
        calls = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
        decorators = {name for each in calls for name in _named(each)}
        if any("property" in name for name in decorators):
            self._properties.add(place)
        if any("cache" in name for name in decorators):
            self._cached.add(place)
        if is_pass_through(function):
            self.places["pass-through functions"].append(place)
        if is_small(function) and not function.name.startswith("__") and not function.decorator_list:
            self._small[function.name].append(place)

    def report(self, *, verbose: bool) -> Iterator[str]:
        """The counts, each with its places if they are asked for."""
        for path in (self._root / "tests").rglob("*.py"):
            self._tested |= {name for node in ast.walk(ast.parse(path.read_text())) for name in _named(node)}
        yield f"{self.lines:>7} lines\n{self.modules:>7} modules\n{self.functions:>7} functions\n"
        yield f"{self.docstrings_that_ask:>7} docstrings that ask\n"
        for count, places in self.places.items():
            unexplained = sum(not self._reason(place) for place in places)
            without = f", {unexplained} of them without a reason" if unexplained < len(places) else ""
            yield f"{len(places):>7} {count}{without}\n"
            yield from (f"          {place}{self._reason(place)}\n" for place in places if verbose)

    def _reason(self, place: str) -> str:
        module, name = place.partition(":")[0], place.rpartition(" ")[2]
        reasons = {
            "contract": name in self._contract or (name.startswith("__") and name.endswith("__")),
            "property": place in self._properties,
            "cached": place in self._cached,
            "callback": name not in self._called and self._names[name] > 0,
            "interface": place in self._small_places and self._modules[name] != {module},
            "tested": name in self._tested and not name.startswith("_"),
        }
        return next((f" ({reason})" for reason, holds in reasons.items() if holds), "")


def _asked(owner: ast.ClassDef, method: Function) -> bool:
    """Tell a method that others ask for: of a protocol, abstract, or one that extends the method of a base class."""
    if any("Protocol" in _named(base) for base in owner.bases):
        return True
    if any("abstractmethod" in _named(each) for each in method.decorator_list):
        return True
    return any(
        isinstance(node, ast.Attribute) and node.attr == method.name and ast.unparse(node.value) == "super()"
        for node in ast.walk(method)
    )


def _named(node: ast.AST) -> Sequence[str]:
    """The last name of a dotted one; nothing of other nodes."""
    if isinstance(node, ast.Name):
        return (node.id,)
    return (node.attr,) if isinstance(node, ast.Attribute) else ()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-v", dest="verbose", action="store_true")
    parser.add_argument("root", nargs="?", default=".", type=Path)
    arguments = parser.parse_args()
    sys.stdout.writelines(Structure(arguments.root).report(verbose=arguments.verbose))
