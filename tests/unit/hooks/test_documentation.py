"""Documentation of hooks against the code."""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from auditord import testing
from auditord.config.files import MADE_LATER
from auditord.hooks import load_hooks
from auditord.hooks.loading import find_specs
from auditord.testing import plugin
from auditord_hookspecs import (
    Batch,
    CollectorKind,
    ImportedConfig,
    ImporterKind,
    PluginKind,
    Produced,
    Quarantined,
    RunReport,
    SenderKind,
)
from tests.references.contract import signature

ROOT = Path(__file__).parents[3]
README = (ROOT / "hookspecs/README.md").read_text()
SPECS = find_specs()

each_hook = pytest.mark.parametrize("name", sorted(SPECS))


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^### {title}$\n(.*?)(?=^##|\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"hookspecs/README.md has no heading '### {title}'"
    return found[1]


@each_hook
def test_every_hook_has_a_heading_with_its_signature(name: str) -> None:
    assert f"```python\n{signature(SPECS[name])}\n```" in section(name)


def test_there_is_no_heading_of_a_hook_that_is_gone() -> None:
    assert set(re.findall(r"^### (auditord_\w+)$", README, re.MULTILINE)) == set(SPECS)


@each_hook
def test_every_hook_has_a_complete_example_in_its_docstring(name: str) -> None:
    _, _, example = (inspect.getdoc(SPECS[name]) or "").partition("Example::\n")
    (node,) = ast.parse(textwrap.dedent(example)).body
    assert isinstance(node, ast.AsyncFunctionDef if inspect.iscoroutinefunction(SPECS[name]) else ast.FunctionDef)
    assert (node.name, [ast.unparse(each) for each in node.decorator_list]) == (name, ["hookimpl"])
    assert {each.arg for each in node.args.args} <= set(inspect.signature(SPECS[name]).parameters)


@each_hook
def test_every_hook_has_a_built_in_that_implements_it(name: str) -> None:
    assert [
        module.name for module in load_hooks([]).modules if module.distribution == "auditord" and name in module.hooks
    ]


@pytest.mark.parametrize(
    "declaration",
    [Batch, CollectorKind, ImportedConfig, ImporterKind, PluginKind, Produced, Quarantined, RunReport, SenderKind],
)
def test_every_field_of_a_declaration_has_a_row(declaration: Any) -> None:
    rows = re.findall(r"^\| `(\w+)` \| \S", section(declaration.__name__), re.MULTILINE)
    assert rows == [field.name for field in fields(declaration)]


def test_the_tutorial_is_the_distribution_that_is_tested() -> None:
    folder = ROOT / "tests/acceptance/third_party"
    assert f"```python\n{(folder / 'auditord_pagelog.py').read_text()}```" in README
    assert f"```toml\n{(folder / 'pyproject.toml').read_text()}```" in README


def test_the_options_whose_files_may_be_missing_are_documented() -> None:
    (named,) = re.findall(r"leaves out the options (.*?), whose files may", README, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == MADE_LATER


def test_all_that_authors_test_with_is_documented() -> None:
    fixtures = re.findall(r"^@pytest\.fixture\ndef (\w+)", inspect.getsource(plugin), re.MULTILINE)
    assert len(fixtures) > 5
    assert [name for name in (*testing.__all__, *fixtures) if f"`{name}" not in README] == []
