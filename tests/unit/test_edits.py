"""Changes of a record that an operator wants."""

from datetime import UTC, datetime

import click
import pytest

from auditord.cli.amending import Edits
from auditord_hookspecs import Component, InvalidRecord, Record, Score

START = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = Record("r", START, (Component("Cores", 8, (Score("s", 1.0),)),), None, {"site": ("A",), "vo": ("x", "y")})


def test_nothing_is_different_unless_it_is_said() -> None:
    assert Edits().apply(RECORD) == RECORD
    assert Edits(stop_time=START).apply(RECORD).stop_time == START


@pytest.mark.parametrize(
    ("changes", "meta"),
    [
        (["site=B"], {"site": ("B",), "vo": ("x", "y")}),
        (["vo=z"], {"site": ("A",), "vo": ("z",)}),
        (["vo=z", "vo=w=1"], {"site": ("A",), "vo": ("z", "w=1")}),
        (["site=", "new=1"], {"vo": ("x", "y"), "new": ("1",)}),
        (["site=", "vo="], None),
    ],
)
def test_meta(changes: list[str], meta: dict[str, tuple[str, ...]] | None) -> None:
    assert Edits(meta=changes).apply(RECORD).meta == meta


def test_an_amount_keeps_its_scores_and_a_new_component_has_none() -> None:
    changed = Edits(components=["Cores=4", "a=b=2"]).apply(RECORD)
    assert changed.components == (Component("Cores", 4, (Score("s", 1.0),)), Component("a=b", 2, ()))


@pytest.mark.parametrize("text", ["Cores", "=4", "Cores=", "Cores=-1", "Cores=1.5", "Cores=²"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(click.BadParameter, match="NAME=AMOUNT"):
        Edits(components=[text]).apply(RECORD)


def test_what_is_no_meta_and_what_breaks_a_rule() -> None:
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        Edits(meta=["site"]).apply(RECORD)
    with pytest.raises(InvalidRecord):
        Edits(components=[f"Cores={2**63}"]).apply(RECORD)
    twice = Record("r", START, (Component("Cores", 1, ()), Component("Cores", 2, ())))
    with pytest.raises(InvalidRecord, match="--from-file"):
        Edits(components=["Cores=4"]).apply(twice)
