"""Records dropped into a folder: each of them once, whatever happens, and what is wrong set aside alone."""

import csv
import json
import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.tasks.instances import closing
from auditord.testing import FakeCollectorContext, make_record
from auditord_builtin.files.collecting import FILES
from auditord_builtin.files.reading import FilesConfig, leaves_quote_open
from auditord_hookspecs import AuditordError, Batch, Component, InvalidRecord, Produced, Record, Score, Window
from auditord_hookspecs.wire import encode_record

pytestmark = pytest.mark.anyio

NOW: Final = datetime(2026, 5, 1, tzinfo=UTC)


class DropFolder:
    """A folder, whoever drops files into it, and where results are."""

    def __init__(self, parent: Path) -> None:
        self.folder, self.results = parent / "drop", parent / "results"
        self.folder.mkdir()
        self.results.mkdir(mode=0o700)

    def put(self, name: str, content: str | bytes, age: timedelta = timedelta(minutes=1)) -> Path:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        written = (NOW - age).timestamp()
        os.utime(path, (written, written))
        return path

    def tree(self) -> dict[str, list[str]]:
        folders = {".": self.folder, **{path.name: path for path in self.results.iterdir()}}
        found = {place: sorted(path.name for path in folder.iterdir()) for place, folder in folders.items()}
        return {place: names for place, names in found.items() if names}

    def text(self, place: str) -> str:
        return (self.results / place).read_text()


@pytest.fixture
def drop(tmp_path: Path) -> DropFolder:
    return DropFolder(tmp_path)


def lines(*ids: str) -> str:
    return "".join(encode_record(make_record(each)).decode() + "\n" for each in ids)


def config(drop: DropFolder, **options: Any) -> FilesConfig:
    return FilesConfig.model_validate({"folder": drop.folder, **options})


async def run(chosen: FilesConfig, at: FakeCollectorContext) -> list[Record]:
    return await keep(at, FILES.collect(chosen, at))


async def keep(
    at: FakeCollectorContext, batches: AsyncIterator[Batch], killed: tuple[int, bool] | None = None
) -> list[Record]:
    """Keep batches as the spool does; killed with batch number ``killed``, just before or after that is durable."""
    records: list[Record] = []
    number = 0
    async with closing(batches):
        async for batch in batches:
            if killed == (number, False):
                break
            at.kept.append(batch)
            records += [item.record if isinstance(item, Produced) else item for item in batch.records]
            at.pending_values = {
                key: value for key, value in {**at.pending_values, **batch.pending}.items() if value is not None
            }
            if killed == (number, True):
                break
            number += 1
    return records


def context(drop: DropFolder, **options: Any) -> FakeCollectorContext:
    return FakeCollectorContext(moment=NOW, folder=drop.results, **options)


def ids(records: list[Record]) -> list[str]:
    return [record.record_id for record in records]


async def test_ndjson_is_taken_in_and_put_away(drop: DropFolder) -> None:
    drop.put("a.ndjson", lines("1", "2") + "\n \n" + lines("3").rstrip("\n"))
    at = context(drop)
    assert ids(await run(config(drop), at)) == ["1", "2", "3"]
    assert drop.tree() == {"done": ["a.ndjson"]}
    assert await run(config(drop), at) == []
    assert at.pending_values == {}


CSV: Final = (
    "\ufeffrecord_id,start_time,stop_time,runtime,meta.site_id,meta.user_id,amount.Cores,score.Cores.HEPscore23,amount.GPU.a100\n"
    'a-1,2026-01-02T03:04:05Z,2026-01-02T04:04:05Z,3600,SITE,"Doe, Jane",8,10.5,\n'
    "a-2,2026-01-02T03:04:05Z,,,SITE,,,,2\r\n"
)


async def test_csv_has_the_columns_of_the_clients_tables(drop: DropFolder) -> None:
    drop.put("a.csv", CSV)
    first, second = await run(config(drop), context(drop))
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    cores = Component("Cores", 8, (Score("HEPscore23", 10.5),))
    meta: dict[str, tuple[str, ...]] = {"site_id": ("SITE",), "user_id": ("Doe, Jane",)}
    assert first == Record("a-1", start, (cores,), start + timedelta(hours=1), meta)
    assert second == Record("a-2", start, (Component("GPU.a100", 2, ()),), None, {"site_id": ("SITE",)})


async def test_csv_of_any_form_is_read_by_rules(drop: DropFolder) -> None:
    drop.put("a.csv", "record_id,start_time,queue,who,slots\n1,2026-01-02T03:04:05Z,gpu,jane,4\n")
    rules = {
        "record_prefix": "cloud",
        "sites": [{"name": "GPU-SITE", "only_if": {"key": "queue", "matches": "gpu"}}, {"name": "OTHER"}],
        "meta": [{"name": "user_id", "key": "who", "key_type": "String"}],
        "components": [{"name": "Cores", "key": "slots", "scores": [{"name": "HEPscore23", "value": 2}]}],
    }
    [record] = await run(config(drop, **rules), context(drop))
    assert record.record_id == "cloud-1"
    assert record.meta == {"user_id": ("jane",), "site_id": ("GPU-SITE",)}
    assert record.components == (Component("Cores", 4, (Score("HEPscore23", 2.0),)),)


@pytest.mark.parametrize(
    ("name", "poison"),
    [
        ("a.ndjson", '{"record_id": "x"}'),
        ("a.ndjson", "garbage"),
        ("a.ndjson", "x" * 3_000_000),
        ("a.jsonl", '{"record_id": "", "start_time": "2026-01-01T00:00:00Z", "components": []}'),
        ("a.csv", "p,not a time,,,SITE,,,,"),
        ("a.csv", "p,2026-01-02T03:04:05Z,,,SITE"),
        ("a.csv", "p,2026-01-02T03:04:05Z,,,SITE,,1.5,,"),
        ("a.csv", "p,2026-01-02T03:04:05Z,,,SITE,,-1,,"),
    ],
)
async def test_one_bad_line_is_set_aside_alone(drop: DropFolder, name: str, poison: str) -> None:
    is_csv = name.endswith("csv")
    *before, last = (CSV if is_csv else lines("1", "2")).splitlines(keepends=True)
    drop.put(name, "".join(before) + poison + "\n" + last)
    at = context(drop)
    assert ids(await run(config(drop), at)) == (["a-1", "a-2"] if is_csv else ["1", "2"])
    [bad] = [each for batch in at.kept for each in batch.quarantined]
    number = len(before) + 1
    assert bad.source_id.startswith(f"{name}:{number}:")
    assert bad.raw["line"] == number
    assert name not in bad.reason
    assert drop.tree() == {"done": [name], "quarantine": [name]}
    header = before[0] if is_csv else ""
    assert drop.text(f"quarantine/{name}").startswith(header + poison[:1_000])
    assert FILES.convert
    with pytest.raises(InvalidRecord):
        FILES.convert(config(drop), bad.raw)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
async def test_a_line_break_in_quotes_is_part_of_the_value_and_begins_no_record(drop: DropFolder, ending: str) -> None:
    broken = f'Doe,{ending}b-1,2026-01-02T03:04:05Z,,,SITE,,64,,{ending}""x""'
    row = f'a-0,2026-01-02T03:04:05Z,,,SITE,"{broken}",8,,{ending}'
    drop.put("a.csv", CSV + row + "bad,not a time,,,SITE,,,,\n" + "a-3,2026-01-02T03:04:05Z,,,SITE,,,,\n")
    at = context(drop)
    records = await run(config(drop), at)
    assert ids(records) == ["a-1", "a-2", "a-0", "a-3"]
    assert records[2].meta == {"site_id": ("SITE",), "user_id": (broken.replace('""', '"'),)}
    [bad] = [each for batch in at.kept for each in batch.quarantined]
    assert bad.raw["line"] == 7


@pytest.mark.parametrize("more", [0, 40_000])
async def test_a_quote_that_is_not_closed_takes_the_lines_after_it(drop: DropFolder, more: int) -> None:
    after = "b-1,2026-01-02T03:04:05Z,,,SITE,,64,,\n" * (more + 2)
    drop.put("a.csv", CSV + 'a-0,2026-01-02T03:04:05Z,,,"SITE,,,,\n' + after)
    at = context(drop)
    assert ids(await run(config(drop), at)) == ["a-1", "a-2"]
    [bad] = [each for batch in at.kept for each in batch.quarantined]
    assert bad.raw["line"] == 4
    assert ("is a quote not closed?" if more else "with all quotes closed") in bad.reason
    assert drop.tree() == {"done": ["a.csv"], "quarantine": ["a.csv"]}


async def test_a_quote_in_the_middle_of_a_long_row_opens_nothing(drop: DropFolder) -> None:
    long = "a-0,2026-01-02T03:04:05Z,,,SITE,".ljust(1 << 20, "x") + '"x,,,\n'  # read in two pieces
    drop.put("a.csv", CSV + long + "a-3,2026-01-02T03:04:05Z,,,SITE,,,,\n")
    at = context(drop)
    assert ids(await run(config(drop), at)) == ["a-1", "a-2", "a-3"]
    [bad] = [each for batch in at.kept for each in batch.quarantined]
    assert (bad.raw["line"], "bytes" in bad.reason) == (4, True)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([",", '"', '""', "a", "\n", ',"', '",', '"\n']), max_size=30))
def test_rows_end_where_the_csv_module_ends_them(pieces: list[str]) -> None:
    opened, ends = False, list[int]()
    lines = "".join(pieces).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        opened = leaves_quote_open(line.encode(), opened=opened)
        ends += [] if opened else [number]
    reader = csv.reader(lines)
    expected = [reader.line_num for _ in reader]
    assert ends == (expected[:-1] if opened and expected else expected)


async def test_what_is_not_utf_8_is_set_aside_alone(drop: DropFolder) -> None:
    drop.put("a.csv", CSV.encode() + b"\xff,2026-01-02T03:04:05Z,,,SITE,,,,\n")
    at = context(drop)
    assert len(await run(config(drop), at)) == 2
    assert (drop.results / "quarantine/a.csv").read_bytes().splitlines()[1].startswith(b"\xff,")


async def test_a_quarantined_line_is_recovered_by_a_mended_configuration(drop: DropFolder) -> None:
    drop.put("a.csv", "record_id,start_time,queue\n1,2026-01-02T03:04:05Z,new\n")
    at = context(drop)
    assert await run(config(drop, sites=[{"name": "A", "only_if": {"key": "queue", "matches": "old"}}]), at) == []
    [bad] = [each for batch in at.kept for each in batch.quarantined]
    assert FILES.convert
    record = FILES.convert(config(drop, sites=[{"name": "A"}]), json.loads(json.dumps(bad.raw)))
    assert isinstance(record, Record)
    assert record.meta == {"site_id": ("A",)}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "", "no column record_id"),
        ("a.csv", "record_id,stop_time\n", "no column start_time"),
        ("a.csv", "record_id,start_time,start_time\n", "twice"),
        ("a.csv", "record_id,start_time,Cores\n", "'Cores'"),
        ("a.csv", "record_id,start_time,score.Cores.X\n", "'score.Cores.X'"),
        ("a.csv", '"record_id,start_time\n', "CSV"),
        ("a.xlsx", "PK", "must end in one of .csv"),
    ],
)
async def test_a_file_that_cannot_be_used_is_set_aside_with_the_reason(
    drop: DropFolder, name: str, content: str, reason: str
) -> None:
    drop.put(name, content)
    drop.put("b.ndjson", lines("1"))
    assert ids(await run(config(drop), context(drop))) == ["1"]
    assert drop.tree() == {"done": ["b.ndjson"], "failed": [name, f"{name}.reason"]}
    assert reason in drop.text(f"failed/{name}.reason")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (1_001, "1003 columns: at most 1000 are allowed\n"),
        (95_554, "the first line has more than 32768 bytes\n"),
        (130, "the first line has more than 32768 bytes\n"),
    ],
)
async def test_too_many_and_too_long_columns_are_refused(drop: DropFolder, columns: int, reason: str) -> None:
    named = [f"meta.{number}".ljust(255 if columns < 1_000 else 0, "x") for number in range(columns)]
    drop.put("a.csv", f"record_id,start_time,{','.join(named)}\n" + "x\n" * 3_000)
    at = context(drop)
    assert await run(config(drop), at) == []
    assert drop.tree() == {"failed": ["a.csv", "a.csv.reason"]}
    assert drop.text("failed/a.csv.reason") == reason
    assert not [each for batch in at.kept for each in batch.quarantined]


async def test_a_batch_is_bounded_by_the_names_that_each_record_repeats(drop: DropFolder) -> None:
    header = f"record_id,start_time,stop_time,{','.join(f'amount.{number}'.ljust(64, 'x') for number in range(490))}\n"
    values = ",".join(["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", *["1"] * 490])
    drop.put("a.csv", header + "".join(f"{number},{values}\n" for number in range(500)))
    at = context(drop)
    assert len({each.record_id for each in await run(config(drop), at)}) == 500
    assert max(len(batch.records) for batch in at.kept) <= (8 << 20) // len(header) + 1


@pytest.mark.parametrize("lines", [3_000, 100_000])
async def test_invalid_lines_are_stored_in_proportion_to_the_file(drop: DropFolder, lines: int) -> None:
    header = f"record_id,start_time,{','.join(f'meta.{number}'.ljust(30, 'x') for number in range(998))}\n"
    content = header + "x\n" * lines
    drop.put("a.csv", content)
    at = context(drop)
    assert await run(config(drop), at) == []
    *entries, more = {each.source_id: each for batch in at.kept for each in batch.quarantined}.values()
    assert len(entries) + more.raw["lines"] == lines
    assert more.reason.startswith("and more invalid lines: the folder quarantine")
    assert sum(len(json.dumps(entry.raw)) for entry in entries) < 5 * len(content) + 20_000
    assert drop.text("quarantine/a.csv") == content
    assert FILES.convert
    with pytest.raises(InvalidRecord, match="the text is not here"):
        FILES.convert(config(drop), more.raw)


async def test_scores_and_components_may_have_dots(drop: DropFolder) -> None:
    columns = ("amount.a.b", "amount.a", "score.a.b.c.d", "score.a.x", "score.a.b.y")
    drop.put("a.csv", f"record_id,start_time,{','.join(columns)}\n1,2026-01-01T00:00:00Z,1,2,3,4,5\n")
    [record] = await run(config(drop), context(drop))
    scores = {component.name: [(each.name, each.value) for each in component.scores] for component in record.components}
    assert scores == {"a.b": [("c.d", 3.0), ("y", 5.0)], "a": [("x", 4.0)]}


async def test_equal_places_of_two_files_are_two_entries(drop: DropFolder) -> None:
    """The next file of a name must not replace what the quarantine knows of the first one."""
    at = context(drop)
    for text in ("bad\n", "worse\n"):
        drop.put("a.ndjson", text)
        await run(config(drop), at)
    assert len({each.source_id for batch in at.kept for each in batch.quarantined}) == 2


async def test_the_invalid_lines_of_a_file_that_is_removed_are_kept(drop: DropFolder) -> None:
    path = drop.put("a.ndjson", "bad\n" + lines(*map(str, range(1_500))))
    at = context(drop)
    await keep(at, FILES.collect(config(drop), at), (0, True))
    path.unlink()
    await run(config(drop), at)
    assert drop.tree() == {"quarantine": ["a.ndjson"]}
    assert at.pending_values == {}


async def test_what_is_not_finished_is_left_alone(drop: DropFolder) -> None:
    for name in ("a.ndjson.tmp", "b.part", ".c.ndjson", "d.csv~"):
        drop.put(name, lines("1"))
    drop.put("e.ndjson", lines("1"), age=timedelta(seconds=9))
    (drop.folder / "f.ndjson").symlink_to("/etc/passwd")
    before, at = sorted(path.name for path in drop.folder.iterdir()), context(drop)
    assert await run(config(drop), at) == []
    assert sorted(path.name for path in drop.folder.iterdir()) == before
    assert [dict(batch.skipped) for batch in at.kept] == [{"a link, a folder or another name that is no file": 1}]


async def test_a_file_that_is_written_to_meanwhile_is_read_again(drop: DropFolder) -> None:
    path = drop.put("a.ndjson", lines(*map(str, range(1_500))))
    at, seen = context(drop), list[str]()
    async for batch in FILES.collect(config(drop), at):
        if not seen:
            with path.open("a") as file:
                file.write(lines("late"))
        seen += [item.record.record_id if isinstance(item, Produced) else item.record_id for item in batch.records]
        at.pending_values.update(batch.pending)
    assert drop.tree() == {".": ["a.ndjson"]}
    os.utime(path, (0, 0))
    assert ids(await run(config(drop), at)) == [*map(str, range(1_500)), "late"]
    assert drop.tree() == {"done": ["a.ndjson"]}


async def test_files_of_one_name_do_not_replace_each_other(drop: DropFolder) -> None:
    at = context(drop)
    for number in range(3):
        drop.put("a.ndjson", lines(str(number)) + "bad\n")
        assert ids(await run(config(drop), at)) == [str(number)]
    assert drop.tree() == {key: ["a.1.ndjson", "a.2.ndjson", "a.ndjson"] for key in ("done", "quarantine")}


async def test_a_dry_run_moves_and_writes_nothing(drop: DropFolder) -> None:
    drop.put("a.ndjson", lines("1") + "bad\n")
    drop.put("b.csv", "")
    assert ids(await run(config(drop), context(drop, dry_run=True))) == ["1"]
    assert drop.tree() == {".": ["a.ndjson", "b.csv"]}


async def test_a_period_is_found_again_in_what_was_taken_in(drop: DropFolder) -> None:
    drop.put("a.csv", CSV.replace("a-2,2026-01-02T03:04:05Z,", "a-2,2026-01-02T03:04:05Z,2026-02-02T03:04:05Z"))
    at = context(drop)
    await run(config(drop), at)
    at.window = Window(datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
    assert FILES.inventory is not None
    for listing in (FILES.collect, FILES.inventory):
        assert ids(await keep(at, listing(config(drop), at))) == ["a-2"]
    assert drop.tree() == {"done": ["a.csv"]}


async def test_files_in_done_that_cannot_be_read_again_hide_no_others(drop: DropFolder) -> None:
    drop.put("a.csv", "record_id,start_time,ncpu\n1,2026-02-01T00:00:00Z,8\n")
    for name in ("b", "c", "d"):
        drop.put(f"{name}.csv", f"record_id,start_time\n{name},2026-02-01T00:00:00Z\n")
    rules = [{"name": "Cores", "key": "ncpu", "optional": True}]
    at = context(drop)
    assert ids(await run(config(drop, components=rules), at)) == ["1", "b", "c", "d"]
    done = drop.results / "done"
    (done / "b.csv").rename(done / "b.csv.1")  # as logrotate does
    (done / "c.csv").rename(done / "c.csv.2.gz")
    at.window = Window(datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
    assert ids(await run(config(drop, components=rules), at)) == ["1", "d"]
    at.kept.clear()
    with pytest.raises(AuditordError, match=r"1 file cannot be read again: .*/done/a.csv: unknown columns: 'ncpu'"):
        await run(config(drop), at)
    assert [record.record_id for batch in at.kept for record in batch.records if isinstance(record, Record)] == ["d"]


async def test_without_the_folder_a_run_fails_and_says_so(drop: DropFolder) -> None:
    with pytest.raises(AuditordError, match="create it"):
        await run(config(drop, folder=drop.folder / "missing"), context(drop))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), kills=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=6))
def test_killed_anywhere_every_line_counts_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kills: list[tuple[int, bool]]
) -> None:
    import anyio  # noqa: PLC0415 hypothesis calls a plain function

    anyio.run(_killed_anywhere, tmp_path_factory.mktemp("drop"), seed, kills)


async def _killed_anywhere(folder: Path, seed: int, kills: list[tuple[int, bool]]) -> None:
    drop, chance = DropFolder(folder), random.Random(seed)  # noqa: S311 sizes, no secrets
    at, expected, bad = context(drop), list[str](), 0
    for name in ("a.ndjson", "b.ndjson", "c.ndjson"):
        good = [f"{name}-{number}" for number in range(chance.choice([0, 3, 999, 1_000, 2_500]))]
        poison = chance.randrange(3)
        texts = [*lines(*good).splitlines(keepends=True), *["bad\n"] * poison]
        chance.shuffle(texts)
        drop.put(name, "".join(texts))
        expected, bad = expected + good, bad + poison
    found = list[str]()
    for killed in [*kills, None]:
        found += ids(await keep(at, FILES.collect(config(drop), at), killed))
    assert sorted(found) == sorted(expected)
    assert drop.tree()["done"] == ["a.ndjson", "b.ndjson", "c.ndjson"]
    rejected = "".join(path.read_text() for path in (drop.results / "quarantine").glob("[abc]*"))
    assert rejected == "bad\n" * bad
