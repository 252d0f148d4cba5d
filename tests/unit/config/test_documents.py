from auditord.config.documents import DEFAULT, Document, Origin
from auditord.config.yaml_files import parse


def merged(below: str, above: str) -> Document:
    return parse(below, "a").merge(parse(above, "b"))


def test_mappings_are_joined_at_every_depth() -> None:
    document = merged("x: {y: {p: 1, q: 2}}\nk: 1", "x: {y: {q: 3, r: 4}, z: 5}")
    assert document.values == {"x": {"y": {"p": 1, "q": 3, "r": 4}, "z": 5}, "k": 1}


def test_the_later_source_of_a_value_is_named() -> None:
    document = merged("x:\n  p: 1\n  q: 2", "\n\nx: {q: 3, r: 4}")
    assert document.origin(("x", "p")) == Origin("a", 2)
    assert document.origin(("x", "q")) == Origin("b", 3)
    assert document.origin(("x", "r")) == Origin("b", 3)
    assert document.origin(("x",)) == Origin("a", 1)


def test_a_list_is_replaced_whole_with_its_origins() -> None:
    document = merged("x: [1, 2, 3]", "\nx: [4]")
    assert document.values == {"x": [4]}
    assert document.origin(("x", 2)) == Origin("b", 2)


def test_a_section_that_replaces_a_value_is_named() -> None:
    document = merged("x: 1", "\nx: {y: 2}")
    assert document.origin(("x",)) == Origin("b", 2)


def test_what_nobody_wrote_is_a_default() -> None:
    assert Document().origin(("x",)) == DEFAULT
