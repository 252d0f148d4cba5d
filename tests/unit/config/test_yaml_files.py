from pathlib import Path
from typing import Any

import pytest

from auditord.config.documents import Origin
from auditord.config.yaml_files import parse, read_file
from auditord.errors import ConfigurationError


def value(text: str) -> Any:
    return parse(f"x: {text}\n", "a.yml").values["x"]


@pytest.mark.parametrize("text", ["NO", "no", "on", "yes", "Off", "1:30", "2024-01-01", "5m", "1_000", "0b1", "="])
def test_what_yaml_1_1_would_change_stays_text(text: str) -> None:
    assert value(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("0640", 640),
        ("0o17", 15),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'true'", "true"),
        ('"5"', "5"),
        ("!!str 5", "5"),
        ("{a: [1, {b: NO}]}", {"a": [1, {"b": "NO"}]}),
    ],
)
def test_scalars_follow_the_core_schema(text: str, expected: Any) -> None:
    assert value(text) == expected
    assert type(value(text)) is type(expected)


def test_keys_are_always_text() -> None:
    assert parse("{NO: 1, 2: 2, true: 3, ~: 4}", "a.yml").values == {"NO": 1, "2": 2, "true": 3, "~": 4}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n"])
def test_a_file_without_content_says_nothing(text: str) -> None:
    assert parse(text, "a.yml").values == {}


def test_every_value_knows_its_line() -> None:
    document = parse("a:\n  b:\n    - 1\n    -\n      c: 2\nd: {e: 3}\n", "a.yml")
    assert document.origin(("a", "b")) == Origin("a.yml", 2)
    assert document.origin(("a", "b", 0)) == Origin("a.yml", 3)
    assert document.origin(("a", "b", 1, "c")) == Origin("a.yml", 5)
    assert document.origin(("d", "e", "missing")) == Origin("a.yml", 6)


def test_anchors_cannot_multiply_a_small_file_into_a_large_one() -> None:
    lines = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)]
    with pytest.raises(ConfigurationError, match=r"^a\.yml:\d+: more than 100,000 values: use fewer anchors$"):
        parse("\n".join(["a0: &a0 [x]", *lines]), "a.yml")


def test_an_anchor_may_be_used_twice() -> None:
    assert parse("a: &x {b: 1}\nc: *x\n", "a.yml").values == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"^a\.yml:3: the key 'a' is repeated \(first on line 1\)"),
        ("a: {b: 1, b: 2}", "the key 'b' is repeated"),
        ("- a\n", "must contain a mapping"),
        ("a: 1\n---\nb: 2\n", r"a\.yml:2: not YAML: but found another document"),
        ("a: [1\n", r"a\.yml:2: not YAML"),
        ("\ta: 1\n", r"a\.yml:1: not YAML: a tab is not allowed here: use spaces$"),
        ("a:\n  b: x\n\tc: 2\n", r"a\.yml:3: not YAML: a tab is not allowed here: use spaces$"),
        ("a:\n  b: x\n  \tc: 2\n", r"a\.yml:3: not YAML: a tab is not allowed here: use spaces$"),
        ("a:\n  b: 1\n  c:\t[1]\n", r"a\.yml:3: not YAML: a tab is not allowed here: use spaces$"),
        ("a:\n  b: 1\n    c: 2\n", r"a\.yml:3: not YAML: mapping values are not allowed here$"),
        ("a:\n    b: 1\n   c: 2\n", r"a\.yml:3: not YAML: expected <block end>.*; check the indentation of this line$"),
        ("a: &x {b: *x}", "contains it"),
        ("a: !secret x", "tag !secret"),
        ("a: !!python/object:os.system {}", "tag .*python"),
        ("a: !!int '5'", "tag .*int"),
        ("? [a, b]\n: 1\n", "plain text"),
        ("x: &d {a: 1}\ny:\n  <<: *d\n", r"a\.yml:3: merge keys"),
        ("[" * 5000, "not YAML"),
        ("a: \0", "not YAML"),
    ],
)
def test_what_would_be_lost_or_changed_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(text, "a.yml")


def test_several_faults_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse("a: 1\na: 2\nb: !x 1\n", "a.yml")
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["a.yml:2:", "a.yml:3:"]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^a\.yml:2: not UTF-8: the byte 0xfc is .* Latin-1: save the file as"
    ):
        parse("a: 1\nb: Zürich\nc: Köln\n".encode("latin-1"), "a.yml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.yml: No such file"):
        read_file(tmp_path / "missing.yml")
