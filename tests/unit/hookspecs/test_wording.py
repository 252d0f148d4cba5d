"""Numbers with their words: no message says ``1 records``."""

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from auditord_hookspecs.wording import counted, format_list, span

SOURCES: Final = Path(__file__).parents[3]
PLURALS: Final = (
    "accounts|amounts|bodies|collectors|daemons|days|entries|failures|files|instances|jobs|messages|months|plugins|"
    "problems|records|requests|resources|rows|senders|sites|totals|users|versions|warnings"
)
NOUNS: Final = re.compile(rf" (?:(?!had|has|more|of|sends|THEN)\w+ )?(?:{PLURALS})\b")
EXEMPT: Final = {
    "auditord/cli/demo_run.py": "has commands, `auditord records`",
    "builtin_plugins/auditord_builtin/waldur/history.py": "has the messages of the program that it replaces",
}


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("record",), "0 records"),
        (1, ("record",), "1 record"),
        (2, ("entry",), "2 entries"),
        (3, ("day",), "3 days"),
        (1, ("entry waits", "entries wait"), "1 entry waits"),
        (1_000, ("entry waits", "entries wait"), "1,000 entries wait"),
    ],
)
def test_a_noun_has_the_number_of_what_it_counts(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


def test_a_long_list_ends_with_the_number_of_the_others() -> None:
    assert format_list(["a", "b"], 2) == "a, b"
    assert format_list(["a", "b", "c"], 1, "; ") == "a; and 2 more"


@pytest.mark.parametrize(("seconds", "said"), [(0, "0 s"), (59, "59 s"), (-300, "5 min"), (7_300, "2 h"), (2e5, "2 d")])
def test_a_length_of_time_has_one_unit(seconds: float, said: str) -> None:
    assert span(timedelta(seconds=seconds)) == said


def uncounted(tree: ast.AST) -> Iterator[int]:
    """The lines in which a value stands before a noun in the plural."""
    for text in ast.walk(tree):
        if isinstance(text, ast.JoinedStr):
            pairs = zip(text.values, text.values[1:], strict=False)
            if any(may_be_one(value) and NOUNS.match(str(getattr(after, "value", ""))) for value, after in pairs):
                yield text.lineno
        elif isinstance(text, ast.Constant) and re.search(rf'(?<!")%d{NOUNS.pattern}', str(text.value)):
            yield text.lineno


def may_be_one(value: ast.expr) -> bool:
    """Not so a constant, which is a limit, and a number with decimal places."""
    if not isinstance(value, ast.FormattedValue) or ast.unparse(value.value).strip("_").isupper():
        return False
    return value.format_spec is None or "f" not in ast.unparse(value.format_spec).strip("f")


@pytest.mark.parametrize("package", ["auditord", "builtin_plugins", "hookspecs"])
def test_all_messages_count_by_it(package: str) -> None:
    files = {str(file.relative_to(SOURCES)): file for file in (SOURCES / package).rglob("*.py")}
    found = [
        f"{name}:{line}"
        for name, file in files.items()
        if name not in EXEMPT
        for line in uncounted(ast.parse(file.read_text()))
    ]
    assert found == [], "count by auditord_hookspecs.wording.counted"
