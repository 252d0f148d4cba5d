"""The reference of all hooks as Markdown, made of their signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Final

from auditord.hooks.rules import Function, specified_hooks

_BEGINNING: Final = """\
# Every hook

A hook module is a Python module that an entry point of the group `auditord.hooks` names. It implements hooks, each
marked with `@hookimpl`. `auditord hooks` lists the modules and what they implement.
"""


def markdown() -> str:
    """Return the whole reference, for ``auditord manual hooks``."""
    return "\n".join([_BEGINNING, *(line for function in specified_hooks().values() for line in _lines(function))])


def signature(function: Function) -> str:
    """Return the signature as in the source, on one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise TypeError(f"{function} is no function")
    return signature_of(node)


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the signature of a function in a syntax tree, on one line.

    Raises:
        TypeError: it does not say what it returns.
    """
    if node.returns is None:
        raise TypeError(f"{node.name} is not annotated")
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    match node.returns:
        case ast.Constant(value=str(returned)):  # in quotes: its names are there for type checkers alone
            pass
        case _:
            returned = ast.unparse(node.returns)
    return f"{word} {node.name}({ast.unparse(node.args)}) -> {returned}"


def plain_text(docstring: str) -> str:
    """Return a docstring's text with code in Markdown."""
    return re.sub(r":(?:class|func|data|mod|meth):`~?([^`]*)`", r"`\1`", docstring).replace("``", "`")


def _lines(function: Function) -> Iterator[str]:
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
