"""Write the references of all hooks and all types of the contract as Markdown, from their sources and docstrings."""

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
from auditord.hooks.loading import Function, find_specs

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_HOOKS: Final = """\
# Every hook

A hook module is a Python module that an entry point of the group `auditord.hooks` names. It implements hooks, each
marked with `@hookimpl`. `auditord hooks` lists the modules and what they implement.
"""


def hooks_markdown() -> str:
    """Return the whole reference, for ``auditord manual hooks``."""
    return "\n".join([_HOOKS, *(line for function in find_specs().values() for line in _hook_lines(function))])


def signature(function: Function) -> str:
    """Return the signature as in the source, on one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(node, FunctionNode):
        raise TypeError(f"{function} is no function")
    return signature_of(node)


def signature_of(node: FunctionNode) -> str:
    """Return the signature of a function in a syntax tree, on one line.

    Raises:
        TypeError: its return type is not annotated.
    """
    if node.returns is None:
        raise TypeError(f"{node.name} is not annotated")
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    match node.returns:
        case ast.Constant(value=str(returned)):  # quoted, since only type checkers import its names
            pass
        case _:
            returned = ast.unparse(node.returns)
    return f"{word} {node.name}({ast.unparse(node.args)}) -> {returned}"


def plain_text(docstring: str) -> str:
    """Return a docstring's text with its code as in Markdown."""
    return re.sub(r":(?:class|func|data|mod|meth):`~?([^`]*)`", r"`\1`", docstring).replace("``", "`")


def _hook_lines(function: Function) -> Iterator[str]:
    text, _, example = (inspect.getdoc(function) or "").partition("Example::\n")
    yield from (
        f"## {function.__name__}",
        "",
        "```python",
        signature(function),
        "```",
        "",
        plain_text(text).strip(),
        "",
    )
    if example:
        yield from ("```python", textwrap.dedent(example).strip(), "```", "")


_TYPES: Final = """\
# Every type of the contract

Import all of it from `auditord_hookspecs`. Times are aware `datetime`s, periods `timedelta`s; where a number has a
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
"""The modules of the contract by chapter. A test finds exported names that are missing here."""


class Documented(msgspec.Struct, frozen=True):
    """The parts of a docstring.

    Args:
        text: everything outside the other parts.
        arguments: the description of each argument or field.
        example: code.
    """

    text: str = ""
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    example: str = ""


def types_markdown() -> str:
    """Return the whole reference, for ``auditord manual types``."""
    lines = [_TYPES]
    for chapter, modules in CHAPTERS.items():
        found = [line for module in modules for each in definitions(module) for line in _lines(*each)]
        lines += [f"## {chapter}\n", *found]
    return "\n".join(lines)


@cache
def definitions(module: str) -> Sequence[tuple[str, ast.stmt, str]]:
    """Return the exported classes, functions and aliases of a contract module, each with the string after it."""
    imported = import_module(f"{auditord_hookspecs.__name__}.{module}")
    body = ast.parse(inspect.getsource(imported)).body
    exported = {name: getattr(auditord_hookspecs, name) for name in auditord_hookspecs.__all__}
    return [
        (name, node, _string(following))
        for node, following in zip(body, [*body[1:], None], strict=True)
        if (name := _name_of(node)) in exported and exported[name] is vars(imported)[name]
    ]


def documented(text: str) -> Documented:
    """Split a Google-style docstring into its parts."""
    text, _, example = inspect.cleandoc(text).partition("Example::\n")
    head, _, rest = text.partition("Args:\n")
    listed, _, tail = rest.partition("\nRaises:") if rest else ("", "", "")
    raises = f"\nRaises:{tail}" if tail else ""
    found = re.findall(r"^    (\w+): (.*(?:\n(?: {8}.*|))*)", listed, re.MULTILINE)
    arguments = {name: _sentence(said) for name, said in found}
    return Documented(plain_text(head + raises).strip(), arguments, textwrap.dedent(example).strip())


def fields_of(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and text of each field or property; texts are from descriptions or docstrings."""
    of_class = documented(ast.get_docstring(node) or "").arguments
    for member, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and not (name := ast.unparse(member.target)).startswith("_"):
            text = of_class.get(name) or _string(following) or _described(member.value)
            yield name, ast.unparse(member.annotation), _sentence(text)
        elif isinstance(member, FunctionNode) and _is_property(member):
            kind = ast.unparse(member.returns) if member.returns else ""
            yield member.name, kind, _sentence(ast.get_docstring(member) or "")


def methods_of(node: ast.ClassDef) -> Iterator[FunctionNode]:
    """Yield the public methods."""
    functions = (member for member in node.body if isinstance(member, FunctionNode))
    return (each for each in functions if not each.name.startswith("_") and not _is_property(each))


def _lines(name: str, node: ast.stmt, behind: str) -> Iterator[str]:
    yield f"### {name}\n"
    if isinstance(node, ast.ClassDef):
        yield from _class_lines(node)
    elif isinstance(node, FunctionNode):
        yield from _function_lines(node)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        yield f"```python\n{name} = {ast.unparse(node.value)}\n```\n\n{plain_text(behind)}\n"


def _class_lines(node: ast.ClassDef) -> Iterator[str]:
    said = documented(ast.get_docstring(node) or "")
    yield f"{said.text}\n"
    if bases := [base for base in map(ast.unparse, node.bases) if base in auditord_hookspecs.__all__]:
        yield f"Inherits from {' and '.join(f'[{base}](#{base.lower()})' for base in bases)}.\n"
    if fields := [f"- `{name}`: `{kind}`. {text}" for name, kind, text in fields_of(node)]:
        yield "\n".join(fields) + "\n"
    yield from _example(said)
    for method in methods_of(node):
        yield f"#### {node.name}.{method.name}\n"
        yield from _function_lines(method)


def _function_lines(node: FunctionNode) -> Iterator[str]:
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
    if isinstance(node, ast.ClassDef | FunctionNode):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _is_property(node: FunctionNode) -> bool:
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
