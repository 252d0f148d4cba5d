from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord.config.shown import Remarks, to_yaml
from auditord.config.yaml_files import parse

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@given(st.dictionaries(texts, values, max_size=4))
def test_what_is_printed_reads_back(document: dict[str, Any]) -> None:
    assert parse(to_yaml(document), "printed").values == document


@pytest.mark.parametrize(
    "text", ["NO", "1:30", "0o17", "5", "~", "null", "a: b", "- a", "#", "", "[a]", "<<", "2024-01-01"]
)
def test_text_that_could_be_taken_for_something_else_is_quoted(text: str) -> None:
    assert to_yaml({"x": text}) == f'x: "{text}"\n'


@pytest.mark.parametrize("text", ["5m", "a b", "sqlite:///x"])
def test_a_printed_text_stays_the_same(text: str) -> None:
    assert parse(to_yaml({"x": text}), "printed").values == {"x": text}


def test_remarks_stand_above_or_beside() -> None:
    document = {"api": {"listen": ["a:1", "b:2"], "rules": [{"name": "x", "size": 1}, {"name": "z"}]}, "empty": {}}
    remarks = Remarks(above={("api", "listen"): "one\ntwo"}, beside={("api", "rules"): "here", ("empty",): "default"})
    assert to_yaml(document, remarks).splitlines() == [
        "api:",
        "  # one",
        "  # two",
        "  listen: [a:1, b:2]",
        "  rules:  # here",
        "    - name: x",
        "      size: 1",
        "    - name: z",
        "empty: {}  # default",
    ]
