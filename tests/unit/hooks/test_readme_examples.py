"""The pieces of code in hookspecs/README.md do what the text around them says; its distribution is tested elsewhere."""

import asyncio
import re
import sys
import textwrap
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

import auditord_hookspecs
from auditord.hooks.loading import find_specs
from auditord.testing import FakeCollectorContext, FakePluginContext, make_record
from auditord.testing.contexts import HttpRequest
from auditord_hookspecs import (
    AuditordError,
    CollectorKind,
    Component,
    HttpAnswer,
    Record,
    RunConfig,
    Score,
    Window,
    checks,
    query,
)
from auditord_hookspecs.sources import TlsFiles
from tests.references.contract import signature

README = (Path(__file__).parents[3] / "hookspecs/README.md").read_text()
PAGELOG = Path(__file__).parents[2] / "acceptance/third_party/auditord_pagelog.py"
SIGNATURES = {signature(hook) for hook in find_specs().values()}
BLOCKS: list[str] = [
    block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if block.strip() not in SIGNATURES
]


def block_with(words: str) -> str:
    (found,) = [block for block in BLOCKS if words in block]
    return found


def run(words: str, **names: Any) -> dict[str, Any]:  # Any: of an example
    """Execute the block, beside all that a module imports from the contract; returns its names."""
    contract = {**vars(auditord_hookspecs), **vars(query), **vars(checks)}
    space = {name: each for name, each in contract.items() if not name.startswith("_")} | names
    exec(compile(block_with(words), "hookspecs/README.md", "exec"), space)  # noqa: S102
    return space


def test_each_piece_is_run_here_or_is_a_file_of_a_distribution() -> None:
    here = ["Deferred.at(", "check_program", "february =", "def publish", "def test_each_line"]
    distributions = ["class PageLogConfig", 'Panel("pages"']  # test_third_party, test_panels
    assert [block for block in BLOCKS if not any(words in block for words in (*here, *distributions))] == []


@pytest.fixture
def pagelog() -> SimpleNamespace:
    """The module of the example distribution."""
    return SimpleNamespace(**run_path(str(PAGELOG)))


def collect(pagelog: SimpleNamespace, log: Path, context: FakeCollectorContext) -> list[str]:
    config = pagelog.PageLogConfig(path=log)
    return [record.record_id for record in asyncio.run(context.keep(pagelog.collect(config, context)))]


def test_the_collector_reads_a_period_again_from_the_start_of_its_file(
    pagelog: SimpleNamespace, tmp_path: Path
) -> None:
    log, context = tmp_path / "page.log", FakeCollectorContext()
    log.write_text("1 alice 2026-01-01T08:00:00Z 12\n2 bob 2026-01-01T09:00:00Z 3\n3 carol 2026-01-01T10:")
    assert collect(pagelog, log, context) == ["pages-1", "pages-2"]
    assert collect(pagelog, log, context) == []
    log.write_text(f"{log.read_text()}00:00Z 1\n")
    nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
    again = FakeCollectorContext(checkpoint=context.checkpoint, window=Window(nine, nine + timedelta(hours=1)))
    assert collect(pagelog, log, again) == ["pages-2"]
    assert collect(pagelog, log, context) == ["pages-3"]


def test_the_collector_reads_some_thousand_lines_at_once(pagelog: SimpleNamespace, tmp_path: Path) -> None:
    log, context = tmp_path / "page.log", FakeCollectorContext()
    log.write_text("".join(f"{number} alice 2026-01-01T08:00:00Z 12\n" for number in range(10_000)))
    assert len(set(collect(pagelog, log, context))) == 10_000
    assert 2 < len(context.kept) < 10


def test_the_collector_fails_if_its_file_was_rotated(pagelog: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "page.log").write_text("1 alice 2026-01-01T08:00:00Z 12\n")
    with pytest.raises(AuditordError, match="shorter than at the last run: was it rotated"):
        collect(pagelog, tmp_path / "page.log", FakeCollectorContext(checkpoint=1_000))


def test_the_collector_quarantines_a_line_under_the_id_of_its_job(pagelog: SimpleNamespace, tmp_path: Path) -> None:
    log, context = tmp_path / "page.log", FakeCollectorContext()
    log.write_bytes(b"17 alice 2026-01-01T08:00:00Z x\n18 b\xff yesterday 1\n")
    assert collect(pagelog, log, context) == []
    one, two = (job for batch in context.kept for job in batch.quarantined)
    assert (one.source_id, one.raw) == ("17", "17 alice 2026-01-01T08:00:00Z x")
    assert one.reason.startswith("expected a line such as '17 alice 2026-11-01T08:00:00Z 12': invalid literal")
    assert (two.source_id, two.raw) == ("18", "18 b\\xff yesterday 1")


def test_the_test_of_the_collector_passes(
    pagelog: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "auditord_pagelog", pagelog)
    asyncio.run(run("def test_each_line")["test_each_line_is_read_once"](FakeCollectorContext(), tmp_path))


def test_a_check_finds_what_it_looks_at(tmp_path: Path) -> None:
    names = {"PageLogConfig": RunConfig, "Context": object, "AsyncIterator": AsyncIterator}
    check = run("check_program", **names)["check"]
    (tmp_path / "page.log").write_text("")
    context = FakeCollectorContext(commands=lambda _: b"device for main\n")

    async def found() -> list[str]:
        config = SimpleNamespace(path=tmp_path / "page.log")
        return [finding.severity.name async for finding in check(config, context)]

    assert asyncio.run(found()) == ["OK", "OK"]
    assert context.ran == [("lpstat", "-v")]


def test_a_kind_that_is_declared_by_name_is_imported_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = CollectorKind(name="pagelog", config=RunConfig, collect=lambda *_: None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "auditord_pagelog", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "auditord_pagelog.kinds", SimpleNamespace(PAGELOG=kind))
    (deferred,) = run("Deferred.at(", Iterable=Iterable, Any=Any)["auditord_collectors"]()
    assert (deferred.name, deferred.load()) == ("pagelog", kind)


def test_sums_are_weighted_core_hours_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    start = datetime(2026, 1, 31, 22, tzinfo=UTC)  # two hours before the month
    cores = Component("Cores", 4, (Score("hepscore23", 2.0),))
    stored = [
        Record("a", start, (cores,), start + timedelta(hours=3), {"site_id": ("my-site",), "group_id": ("atlas",)}),
        make_record("b", start=start + timedelta(days=2), cores=8, site_id="my-site", group_id="atlas"),
        make_record("c", start=start + timedelta(days=2), site_id="other", group_id="cms"),
    ]
    context = FakePluginContext(stored=stored, moment=start + timedelta(days=60))
    names: dict[str, Any] = {"datetime": datetime, "UTC": UTC, "context": context}  # Any: of an example
    code = f"async def example():\n{textwrap.indent(block_with('february ='), '    ')}"
    space: dict[str, Any] = {**vars(auditord_hookspecs), **vars(query), **names}  # Any: the same
    exec(compile(code, "hookspecs/README.md", "exec"), space)  # noqa: S102
    asyncio.run(space["example"]())
    assert capsys.readouterr().out == "atlas 2 8.00 unscored: 8\n"


def answer(status: int, request: HttpRequest) -> HttpAnswer:
    return request.answer(status, b"no such site")


def test_a_request_is_made_with_the_token_and_its_refusal_is_raised() -> None:
    publish = run("def publish", PublishConfig=RunConfig)["publish"]
    config = SimpleNamespace(tls=TlsFiles(), token=SecretStr("sesame"), url="https://hook.example/usage")
    for status, raised in ((204, None), (422, "was answered 422: no such site")):
        context = FakePluginContext(server=partial(answer, status))
        with pytest.raises(AuditordError, match=raised) if raised else nullcontext():
            asyncio.run(publish(config, context))
        (request,) = context.requested
        assert (request.method, request.headers["Authorization"]) == ("POST", "Bearer sesame")
