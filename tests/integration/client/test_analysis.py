"""Tables of records, and the manual's chapter about them, executed as it stands."""

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from auditord.client import Client, to_arrow, to_pandas, to_polars
from auditord.client.frames import MissingLibrary
from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.records import MAX_AMOUNT
from tests.fake_auditor import FakeAuditor, fake_auditor

CHAPTER = Path(__file__).parents[3] / "auditord/manual/analysis.md"
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

RECORDS = [
    make_record("open", runtime=None, site_id="S"),
    Record(
        "full",
        EPOCH,
        (
            Component("Cores", 2, (Score("HEPscore23", 9.5),)),
            Component("Cores", 3, (Score("HEPscore23", 7.0),)),
            Component("Disk", MAX_AMOUNT, ()),
            Component("Disk", 1, ()),
        ),
        EPOCH + HOUR,
        {"site_id": ("S", "T"), "nothing": ()},
    ),
    Record("bare", EPOCH, ()),
]
EXPECTED: dict[str, list[Any]] = {
    "record_id": ["open", "full", "bare"],
    "start_time": [EPOCH] * 3,
    "stop_time": [None, EPOCH + HOUR, None],
    "runtime": [None, 3600, None],
    "meta.site_id": [["S"], ["S", "T"], None],
    "meta.nothing": [None, [], None],
    "amount.Cores": [1, 5, None],
    "amount.Disk": [None, MAX_AMOUNT, None],
    "score.Cores.HEPscore23": [None, 9.5, None],
    "seconds.Cores": [None, 18_000, None],
}


def pandas_columns(records: list[Record]) -> dict[str, list[Any]]:
    frame = to_pandas(records)
    assert str(frame["start_time"].dtype) == "datetime64[us, UTC]"
    assert (str(frame["runtime"].dtype), frame["runtime"].sum()) == ("Int64", 3600)
    return listed(frame)


def listed(frame: Any) -> dict[str, list[Any]]:  # Any: a data frame, whose own types are partly unknown
    return {str(name): list(column.astype(object).where(column.notna(), None)) for name, column in frame.items()}


TABLES: dict[str, Callable[[list[Record]], dict[str, list[Any]]]] = {
    "arrow": lambda records: dict(to_arrow(records).to_pydict()),
    "pandas": pandas_columns,
    "polars": lambda records: to_polars(records).to_dict(as_series=False),
}


@pytest.mark.parametrize("extra", TABLES)
def test_a_table_has_a_row_per_record_and_a_column_per_value(extra: str) -> None:
    table = TABLES[extra](RECORDS)
    assert {name: table[name] for name in sorted(table)} == {name: EXPECTED[name] for name in sorted(EXPECTED)}


EXPLODED: dict[str, Callable[[list[Record]], dict[str, list[Any]]]] = {
    "arrow": lambda records: dict(to_arrow(records, explode="site_id").to_pydict()),
    "pandas": lambda records: listed(to_pandas(records, explode=["site_id", "absent"])),
    "polars": lambda records: to_polars(records, explode={"site_id"}).to_dict(as_series=False),
}


@pytest.mark.parametrize("extra", EXPLODED)
def test_an_exploded_key_has_a_row_for_each_value(extra: str) -> None:
    table = EXPLODED[extra](RECORDS)
    assert table["record_id"] == ["open", "full", "full", "bare"]
    assert table["meta.site_id"] == ["S", "S", "T", None]
    assert [list(each) if each is not None else None for each in table["meta.nothing"]] == [None, [], [], None]
    assert table["start_time"] == [EPOCH] * 4


def test_several_exploded_keys_have_a_row_for_each_combination() -> None:
    record = Record("r", EPOCH, (), None, {"a": ("1", "2"), "b": ("x", "y"), "none": ()})
    table = to_pandas([record], explode=("a", "b", "none"))
    assert list(zip(table["meta.a"], table["meta.b"], strict=True)) == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]
    assert table["meta.none"].isna().all()


@pytest.mark.parametrize("make", [to_arrow, to_pandas, to_polars])
def test_no_records_make_an_empty_table(make: Callable[[list[Record]], Any]) -> None:
    assert make([]).shape == (0, 4)


@pytest.mark.parametrize(
    ("make", "library", "extra"),
    [(to_arrow, "pyarrow", "arrow"), (to_pandas, "pandas", "pandas"), (to_polars, "polars", "polars")],
)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[list[Record]], Any], library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibrary, match=rf"{library} is not installed: pip install 'auditord\[{extra}\]'"):
        make([])


def fill(auditor: FakeAuditor, sites: dict[str, int]) -> None:
    november = EPOCH.replace(month=11)
    Client(auditor.url).add_all(
        make_record(f"{site}-{day}-{n}", start=november + day * DAY, runtime=2 * HOUR, cores=cores, site_id=site)
        for site, cores in sites.items()
        for day in range(3)
        for n in range(5)
    )
    Client(auditor.url).add(make_record("october", start=november - DAY, site_id="gone"))


def test_the_chapter_of_the_manual_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    match = re.search(r"```python\n(.*?)```", CHAPTER.read_text(), re.DOTALL)
    assert match is not None
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    with fake_auditor() as freiburg, fake_auditor() as bonn:
        fill(freiburg, {"ATLAS": 8, "CMS": 1})
        fill(bonn, {"ATLAS": 4})
        code = match[1].replace("http://auditord.freiburg.example:8000", freiburg.url)
        code = code.replace("http://auditor.bonn.example:8000", bonn.url)
        names: dict[str, Any] = {}
        exec(compile(code, CHAPTER, "exec"), names)  # noqa: S102 our own text
    names["plt"].close("all")
    usage = names["usage"]
    assert usage.shape == (3, 3)
    assert {column: float(usage[column].sum()) for column in usage} == {
        ("Freiburg", "ATLAS"): 240.0,
        ("Freiburg", "CMS"): 30.0,
        ("Bonn", "ATLAS"): 120.0,
    }
    assert (tmp_path / "usage.png").read_bytes().startswith(b"\x89PNG")
