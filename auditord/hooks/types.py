"""The reference of all types of the contract as Markdown, made of their sources: fields, units, methods, examples."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Final, TypeAlias

import msgspec

import auditord_hookspecs
from auditord.hooks.reference import plain_text, signature_of

_BEGINNING: Final = """\
# Every type of the contract

All of it is imported from `auditord_hookspecs`. Times are aware `datetime`s, periods `timedelta`s; where a number has a
unit, its line says so. `auditord manual hooks` has the hooks, `auditord manual writing-plugins` is the tutorial.
"""

CHAPTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Records": ("records",),
    "What a hook module declares": ("kinds", "batches", "importers", "transforms", "access", "deferred"),
    "What an instance gets": ("contexts", "commands"),
    "What a sender gets": ("entries",),
    "Questions and answers": ("query", "aggregates"),
    "Panels of the page": ("panels",),
    "Requests to other servers": ("http",),
    "Options": ("config", "sources"),
    "Errors": ("errors",),
    "Other": ("roles", "contract", "hookspec"),
}
"""The modules of the contract by chapter; a test finds an exported name that is in none."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Documented(msgspec.Struct, frozen=True):
    """A docstring in its parts.

    Args:
        text: everything outside the other parts.
        arguments: the description of each argument or field.
        example: code.
    """

    text: str = ""
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    example: str = ""


def markdown() -> str:
    """Return the whole reference, for ``auditord manual types``."""
    lines = [_BEGINNING]
    for chapter, modules in CHAPTERS.items():
        found = [line for module in modules for each in definitions(module) for line in _lines(*each)]
        lines += [f"## {chapter}\n", *found]
    return "\n".join(lines)


@cache
def definitions(module: str) -> Sequence[tuple[str, ast.stmt, str]]:
    """Return the exported classes, functions and aliases of a module of the contract, each with the text after it."""
    there = import_module(f"{auditord_hookspecs.__name__}.{module}")
    body = ast.parse(inspect.getsource(there)).body
    exported = {name: getattr(auditord_hookspecs, name) for name in auditord_hookspecs.__all__}
    return [
        (name, node, _string(following))
        for node, following in zip(body, [*body[1:], None], strict=True)
        if (name := _name_of(node)) in exported and exported[name] is vars(there)[name]
    ]


def documented(text: str) -> Documented:
    """Take a docstring of Google's style apart."""
    text, _, example = inspect.cleandoc(text).partition("Example::\n")
    head, _, rest = text.partition("Args:\n")
    listed, _, tail = rest.partition("\nRaises:") if rest else ("", "", "")
    raises = f"\nRaises:{tail}" if tail else ""
    found = re.findall(r"^    (\w+): (.*(?:\n(?: {8}.*|))*)", listed, re.MULTILINE)
    arguments = {name: _sentence(said) for name, said in found}
    return Documented(plain_text(head + raises).strip(), arguments, textwrap.dedent(example).strip())


def fields_of(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of each field or property: from its description, its own docstring, or the class's."""
    of_class = documented(ast.get_docstring(node) or "").arguments
    for member, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and not (name := ast.unparse(member.target)).startswith("_"):
            text = of_class.get(name) or _string(following) or _described(member.value)
            yield name, ast.unparse(member.annotation), _sentence(text)
        elif isinstance(member, Function) and _is_property(member):
            kind = ast.unparse(member.returns) if member.returns else ""
            yield member.name, kind, _sentence(ast.get_docstring(member) or "")


def methods_of(node: ast.ClassDef) -> Iterator[Function]:
    """Yield the public methods."""
    functions = (member for member in node.body if isinstance(member, Function))
    return (each for each in functions if not each.name.startswith("_") and not _is_property(each))


def _lines(name: str, node: ast.stmt, behind: str) -> Iterator[str]:
    yield f"### {name}\n"
    if isinstance(node, ast.ClassDef):
        yield from _class_lines(node)
    elif isinstance(node, Function):
        yield from _function_lines(node)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        yield f"```python\n{name} = {ast.unparse(node.value)}\n```\n\n{plain_text(behind)}\n"


def _class_lines(node: ast.ClassDef) -> Iterator[str]:
    said = documented(ast.get_docstring(node) or "")
    yield f"{said.text}\n"
    if bases := [base for base in map(ast.unparse, node.bases) if base in auditord_hookspecs.__all__]:
        yield f"Has all that {' and '.join(f'[{base}](#{base.lower()})' for base in bases)} has.\n"
    if fields := [f"- `{name}`: `{kind}`. {text}" for name, kind, text in fields_of(node)]:
        yield "\n".join(fields) + "\n"
    yield from _example(said)
    for method in methods_of(node):
        yield f"#### {node.name}.{method.name}\n"
        yield from _function_lines(method)


def _function_lines(node: Function) -> Iterator[str]:
    said = documented(ast.get_docstring(node) or "")
    yield f"```python\n{signature_of(node)}\n```\n"
    yield f"{said.text}\n"
    if said.arguments:
        yield "\n".join(f"- `{name}`: {text}" for name, text in said.arguments.items()) + "\n"
    yield from _example(said)


def _example(said: Documented) -> Iterator[str]:
    if said.example:
        yield f"```python\n{said.example}\n```\n"


def _sentence(text: str) -> str:
    words = plain_text(" ".join(text.split()))
    return f"{words[:1].upper()}{words[1:]}"


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _is_property(node: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def _string(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return ""


def _described(value: ast.expr | None) -> str:
    """Return the description of a pydantic field."""
    keywords = value.keywords if isinstance(value, ast.Call) else []
    texts = (each.value for each in keywords if each.arg == "description")
    return next((str(text.value) for text in texts if isinstance(text, ast.Constant)), "")
