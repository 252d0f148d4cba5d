"""The reference of the contract's types has every type, a text for every field, and examples that run."""

import ast
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import CodeType

import pytest

import auditord_hookspecs
from auditord.testing import FakeCollectorContext, FakePluginContext, HttpRequest, make_record
from auditord_hookspecs import CommandContext, HttpAnswer
from tests.references.contract import CHAPTERS, definitions, documented, fields_of, methods_of, types_markdown

NAMED = [each for modules in CHAPTERS.values() for module in modules for each in definitions(module)]
CLASSES = [(name, node) for name, node, _ in NAMED if isinstance(node, ast.ClassDef)]


def examples() -> Iterator[tuple[str, str]]:
    for name, node in CLASSES:
        for place, each in ((name, node), *((f"{name}.{method.name}", method) for method in methods_of(node))):
            if example := documented(ast.get_docstring(each) or "").example:
                yield place, example


EXAMPLES = dict(examples())


def test_every_exported_name_is_in_it_once() -> None:
    assert sorted(name for name, _, _ in NAMED) == sorted(auditord_hookspecs.__all__)
    headings = [line.removeprefix("### ") for line in types_markdown().splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted(auditord_hookspecs.__all__)


def test_every_field_method_and_type_has_a_text() -> None:
    silent = [f"{name}.{field}" for name, node in CLASSES for field, _, text in fields_of(node) if not text]
    silent += [
        f"{name}.{each.name}" for name, node in CLASSES for each in methods_of(node) if not ast.get_docstring(each)
    ]
    assert silent + [name for name, node in CLASSES if not ast.get_docstring(node)] == []
    assert [name for name, _ in CLASSES if inspect.isabstract(getattr(auditord_hookspecs, name))] == []
    assert len(types_markdown()) > 30_000


def test_a_docstring_is_taken_apart() -> None:
    arguments = "Args:\n    one: of :class:`X`,\n        or more.\n    two: ``x``.\n"
    found = documented(f"First line.\n\n{arguments}\nRaises:\n    ValueError: no.\n\nExample::\n\n    x = 1\n")
    assert found.text == "First line.\n\n\nRaises:\n    ValueError: no."
    assert found.arguments == {"one": "Of `X`, or more.", "two": "`x`."}
    assert found.example == "x = 1"


def test_what_authors_ask_for_has_an_example() -> None:
    asked = {"Record", "Component", "Score", "Batch", "Produced", "Quarantined", "Window", "Insert", "Close", "Replace"}
    asked |= {"Aggregates", "AggregateQuery", "Context.run_command", "Context.http"}
    assert asked | {"CollectorContext.find_seen", "CollectorContext.pending"} <= set(EXAMPLES)
    assert isinstance(CommandContext, type)


def played(request: HttpRequest) -> HttpAnswer:
    return request.answer(200, b"{}")


@pytest.mark.anyio
@pytest.mark.parametrize("place", sorted(EXAMPLES))
async def test_every_example_runs(place: str) -> None:
    code: CodeType = compile(EXAMPLES[place], place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    collecting = FakeCollectorContext(commands=lambda _: b"1\n", server=played)
    context = FakePluginContext(stored=[make_record()]) if "Aggregate" in place else collecting
    names = {**vars(auditord_hookspecs), "datetime": datetime, "timedelta": timedelta, "UTC": UTC}
    running = eval(code, names | {"context": context, "record": make_record(), "jobs": {"17": 1}})  # noqa: S307
    if inspect.isawaitable(running):
        await running
