"""One walk over a tree of conditions."""

from auditord_hookspecs.query import AllOf, AnyOf, IdEquals, IsOpen, Leaf, fold


def named(condition: Leaf) -> str:
    return condition.record_id if isinstance(condition, IdEquals) else "open"


def test_a_tree_is_folded_from_its_leaves_in_order() -> None:
    tree = AllOf((IdEquals("a"), AnyOf((IdEquals("b"), AllOf((IsOpen(), IdEquals("c"))))), AnyOf()))
    folded = fold(tree, named, lambda parts: f"({'&'.join(parts)})", lambda parts: f"[{'|'.join(parts)}]")
    assert folded == "(a&[b|(open&c)]&[])"
    assert fold(IsOpen(), named, "".join, "".join) == "open"
