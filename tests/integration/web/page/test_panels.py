"""Panels of hook modules: what they show, to whom, and that a fault of one is a line."""

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import (
    AggregateQuery,
    Chart,
    Column,
    Component,
    Panel,
    PanelContext,
    PanelPart,
    Permission,
    Record,
    Series,
    Table,
)
from auditord_hookspecs.hookspec import hookimpl
from tests.page_browser import Browser

README: Final = (Path(__file__).parents[4] / "hookspecs/README.md").read_text()
NOW: Final = datetime.now(UTC)
ROLES: Final = {
    "own": {"permissions": ["read"], "rows": {"user_id": ["self"]}},
    "alice": {"permissions": ["read"], "rows": {"user_id": ["alice"]}},
}


def example() -> ModuleType:
    """The third-party module of the README."""
    found = re.search(r"### auditord_panels.*?```python\n(from .*?)```", README, re.DOTALL)
    assert found is not None
    module = ModuleType("acme_pages")
    exec(found[1], vars(module))  # noqa: S102 our own document
    return module


async def everything(context: PanelContext) -> Sequence[PanelPart]:
    records = (await context.aggregate(AggregateQuery())).groups
    chart = Chart("Runs <b>", ["one", "two"], [Series("a", [1, None]), Series("b", [2.5, 3])], "runs")
    return [Table([Column("Records of all")], [(group.records,) for group in records]), chart, "A <note>"]


async def greedy(context: PanelContext) -> Sequence[PanelPart]:
    return [str(await context.state())]


async def broken(_context: PanelContext) -> Sequence[PanelPart]:
    raise ZeroDivisionError("of bob-1")


async def misshapen(_context: PanelContext) -> Sequence[PanelPart]:
    return [Table([Column("a"), Column("b")], [(1,)])]


async def slow(_context: PanelContext) -> Sequence[PanelPart]:
    await asyncio.Event().wait()
    return []


def others() -> ModuleType:
    module = ModuleType("acme_others")

    @hookimpl
    def auditord_panels() -> Iterable[Panel]:
        yield Panel("whole", "Of everybody", everything, whole=True)
        yield Panel("greedy", "Greedy", greedy, kind="open_records")
        yield Panel("broken", "Broken", broken)
        yield Panel("misshapen", "Misshapen", misshapen)
        yield Panel("slow", "Slow", slow, permission=Permission.ADMINISTER)
        yield Panel("secret", "For operators", everything, permission=Permission.OPERATE)

    vars(module)["auditord_panels"] = auditord_panels
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Browser]]:
    folder = tmp_path_factory.mktemp("panels")
    (folder / "state").mkdir(mode=0o700)
    roles = {"alice": "alice", "reader": "reader", "operator": "operator", "root": "administrator"}
    tokens = {name: new_token(name, [role], NOW, None) for name, role in roles.items()}
    TokenFile(folder / "state").change(lambda _: [stored for stored, _ in tokens.values()])
    sections = {
        "authenticators": {"tokens": {"kind": "tokens"}},
        "access": {"roles": ROLES},
        "plugins": {
            "forgotten": {"kind": "open_records", "older_than": "10d"},
            "monthly": {"kind": "utilisation", "enabled": False},
        },
    }
    with running_daemon(folder, sections, [example(), others()]) as daemon:
        records = [
            Record(f"{name}-1", NOW, (Component("Pages", pages, ()),), NOW, {"user_id": (name,)})
            for name, pages in (("alice", 1_234), ("bob", 77))
        ]
        Client(daemon.url, token=tokens["root"][1]).add_all(records)
        yield {
            name: Browser(daemon.url, headers={"Authorization": f"Bearer {token}"})
            for name, (_, token) in tokens.items()
        }


def test_the_panel_of_the_readme_sums_what_the_visitor_may_see(site: Mapping[str, Browser]) -> None:
    for name, seen in (("alice", (True, False)), ("reader", (True, True))):
        got = site[name].get("/panels")
        assert got.status == 200
        assert ('<td class="number">1,234</td>' in got.text, "<td>bob</td>" in got.text) == seen
        assert "As far as the print server tells." in got.text


def test_panels_about_everything_are_not_there_for_whom_roles_limit(site: Mapping[str, Browser]) -> None:
    assert "Of everybody" not in site["alice"].get("/panels").text
    text = site["reader"].get("/panels").text
    assert "Of everybody" in text
    assert ("Runs &lt;b&gt;" in text, "A &lt;note&gt;" in text, text.count('class="mark"')) == (True, True, 3)
    assert "For operators" not in text
    assert "For operators" in site["operator"].get("/panels").text


def test_a_fault_is_a_line_on_the_page_and_in_the_log(
    site: Mapping[str, Browser], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    got = site["alice"].get("/panels")
    assert (got.status, "Broken" in got.text, "bob-1" in got.text) == (200, True, False)
    assert got.text.count("This panel cannot be shown") == 3
    assert "panel broken (None) of acme_others" in caplog.text
    (line,) = [each for each in caplog.records if "panel misshapen" in each.getMessage()]
    assert (line.exc_info, line.levelname) == (None, "WARNING")
    assert "has a wrong shape: row 1 has 1 values for 2 columns; its author must correct it" in line.getMessage()
    text = site["operator"].get("/panels").text
    assert "ZeroDivisionError: of bob-1" in text
    assert "row 1 has 1 values for 2 columns" in text
    assert "panels with whole=True" in text  # the state is about all records


def test_a_panel_that_takes_too_long_is_left_out(site: Mapping[str, Browser]) -> None:
    text = site["root"].get("/panels").text
    assert "took longer than 5 seconds" in text
    assert "1,234" in text
