"""Every lexical rule of the query string, and every example that the wire contract gives."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeAlias
from urllib.parse import quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.web.limits import MAX_CONDITIONS
from auditord.web.record_query import InvalidQuery, read_query
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    MetaContains,
    MetaLacks,
    Order,
    RecordQuery,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)

EVERYTHING = RecordQuery()
NINE_47 = datetime(2022, 8, 3, 9, 47, tzinfo=UTC)
ENCODED = "2022-08-03T09%3A47%3A00%2B00%3A00"


def where(*conditions: Condition) -> RecordQuery:
    return RecordQuery(AllOf(conditions))


def start(comparison: Comparison, moment: datetime = NINE_47) -> Condition:
    return TimeCompares(TimeField.START, comparison, moment)


@pytest.mark.parametrize("raw", ["", "&", "&&", "&&&"])
def test_empty_pieces_ask_for_everything(raw: str) -> None:
    assert read_query(raw) == EVERYTHING


@pytest.mark.parametrize(
    "raw",
    [
        "limit=",
        "limit",
        "record_id=",
        "start_time=",
        "stop_time=",
        "start_time[gte]=",
        "start_time[gte]",
        "runtime=",
        "runtime[gt]=",
        "sort_by=",
        "sort_by[asc]=",
        "meta=",
        "meta[k][c]=",
        "meta[k][dnc]",
        "component=",
        "component[x][gt]=",
    ],
)
def test_an_empty_value_is_an_absent_parameter(raw: str) -> None:
    assert read_query(raw) == EVERYTHING


@pytest.mark.parametrize(
    "raw", ["meta[k]=", "meta[k]", "meta[k][c][0]=", "meta[k][c][]=", "meta[k][dnc][0]", "component[x]="]
)
def test_an_empty_element_is_refused(raw: str) -> None:
    with pytest.raises(InvalidQuery):
        read_query(raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("record_id=a+b%2Fc", where(IdEquals("a b/c"))),
        ("record_id=s%231.0%2317", where(IdEquals("s#1.0#17"))),
        ("record_id=a%2Fb+c%26d%3De%2Bf%2520", where(IdEquals("a/b c&d=e+f%20"))),
        ("record_id=%C3%BCn%C3%AF%C2%A9ode", where(IdEquals("ünï©ode"))),
        ("record_id=a=b", where(IdEquals("a=b"))),
        ("record%5Fid=a", where(IdEquals("a"))),
        ("record_id=100%", where(IdEquals("100%"))),
        (f"start_time[gte]={ENCODED}", where(start(Comparison.GTE))),
        ("start_time[equals]=2022-08-03T09:47:00Z", where(start(Comparison.EQUALS))),
        ("start_time[gte]=2022-08-03+09:47:00Z", where(start(Comparison.GTE))),
        (
            f"start_time[gt]={ENCODED}&start_time[lt]=2022-08-03T09%3A47%3A00.123%2B00%3A00",
            where(start(Comparison.GT), start(Comparison.LT, NINE_47.replace(microsecond=123_000))),
        ),
        (
            f"runtime[gt]=0&start_time[lt]={ENCODED}&start_time[gt]={ENCODED}",
            where(start(Comparison.LT), start(Comparison.GT), RuntimeCompares(Comparison.GT, 0)),
        ),
        ("runtime[lt]=500&runtime[gte]=300", where(*map(RuntimeCompares, (Comparison.LT, Comparison.GTE), (500, 300)))),
        ("runtime[lte]=9223372036854775807", where(RuntimeCompares(Comparison.LTE, 2**63 - 1))),
        ("runtime[lte]=%2B0000000000000000000000000000000000005", where(RuntimeCompares(Comparison.LTE, 5))),
        ("component[CPU][equals]=4", where(ComponentCompares("CPU", Comparison.EQUALS, 4))),
        ("component[1x][gt]=4294967296", where(ComponentCompares("1x", Comparison.GT, 2**32))),
        (
            "component[a][gt]=1&component[b][gte]=2",
            where(ComponentCompares("a", Comparison.GT, 1), ComponentCompares("b", Comparison.GTE, 2)),
        ),
        ("meta[site_id][c][0]=A%2F1", where(MetaContains("site_id", "A/1"))),
        ("meta[site_id][dnc][0]=A%2F1", where(MetaLacks("site_id", "A/1"))),
        ("meta[vo][c][0]=x&meta[vo][c][1]=v3", where(MetaContains("vo", "x"), MetaContains("vo", "v3"))),
        ("meta[vo][c][7]=b&meta[vo][c][3]=a", where(MetaContains("vo", "a"), MetaContains("vo", "b"))),
        ("meta[vo][c][10]=b&meta[vo][c][9]=a", where(MetaContains("vo", "a"), MetaContains("vo", "b"))),
        ("meta[vo][c][]=b&meta[vo][c][]=a", where(MetaContains("vo", "b"), MetaContains("vo", "a"))),
        ("meta[vo][c]=v", where(MetaContains("vo", "v"))),
        ("meta[1abc][c][0]=x&meta[abc][c][0]=y", where(MetaContains("1abc", "x"), MetaContains("abc", "y"))),
        ("meta[123][c][0]=x", where(MetaContains("123", "x"))),
        ("meta[k][unknown][0]=x", EVERYTHING),
        ("meta[k][unknown]=x&meta[k][unknown]=y&meta[k][c]=v", where(MetaContains("k", "v"))),
        (
            "meta[a+b%2F%C3%A9%5Bx%5D][c][0]=a&meta[a+b%2F%C3%A9%5Bx%5D][c][1]=b+c&meta[a+b%2F%C3%A9%5Bx%5D][dnc][0]=z",
            where(MetaContains("a b/é[x]", "a"), MetaContains("a b/é[x]", "b c"), MetaLacks("a b/é[x]", "z")),
        ),
        ("meta%5Bsite%5D%5Bc%5D=v", where(MetaContains("site", "v"))),
        ("runtime%5bgt%5d=5", where(RuntimeCompares(Comparison.GT, 5))),
        ("limit=0", RecordQuery(limit=0)),
        ("limit=4&", RecordQuery(limit=4)),
        ("sort_by[desc]=start_time", RecordQuery(order=Order(SortField.START, descending=True))),
        ("sort_by[asc]=record_id&limit=3", RecordQuery(order=Order(SortField.ID), limit=3)),
        ("sort_by[asc]=runtime&sort_by[desc]=nonsense&limit=0", RecordQuery(order=Order(SortField.RUNTIME), limit=0)),
        ("sort_by[desc]=stop_time", RecordQuery(order=Order(SortField.STOP, descending=True))),
    ],
)
def test_what_clients_send_is_understood(raw: str, expected: RecordQuery) -> None:
    assert read_query(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        "unknown=1",
        "unknown=",
        "state=started&since=2022-08-03T09:47:00Z",
        "Limit=1",
        "limit=1&limit=2",
        "limit=&limit=2",
        "record_id=a&record_id=a",
        "record_id[0]=a",
        "record_id=+",
        "record_id=a%00b",
        "limit[0]=1",
        "limit=-1",
        "limit=1.0",
        "limit=abc",
        "limit=+5",
        "limit=9223372036854775808",
        "limit=99999999999999999999999999",
        "limit=%D9%A3",
        "runtime=5",
        "runtime[gt]=-5",
        "runtime[eq]=5",
        "runtime[GT]=5",
        "runtime[]=5",
        "runtime[gt][0]=5",
        "component[CPU]=4",
        "component[CPU][is]=4",
        "component[][gt]=4",
        "component[CPU][gt][0]=4",
        "component=4",
        "start_time=2024-02-03T04:05:06Z",
        "start_time[gte]=2024-02-03T04:05:06+00:00",
        "start_time[gte]=2024-02-03T04:05:06",
        "start_time[gte]=1706933106",
        "start_time[gte]=2024-02-30T00:00:00Z",
        f"start_time[gte]={ENCODED}&start_time[gte]={ENCODED}",
        f"start_time[gt]={ENCODED}&start_time[gte]={ENCODED}",
        f"stop_time[lte]={ENCODED}&stop_time[lt]={ENCODED}",
        "runtime[gt]=1&runtime[gte]=2",
        "component[a][lt]=1&component[a][lte]=2",
        "meta=x",
        "meta[k]=x",
        "meta[][c][0]=x",
        "meta[+][c][0]=x",
        "meta[k][c][x]=1",
        "meta[k][c][-1]=1",
        "meta[k][c][0][0]=1",
        "meta[k][c][0]=a&meta[k][c][0]=b",
        "meta[k][c][0]=a&meta[k][c][00]=b",
        "meta[k][c][0]=a&meta[k][c][]=b",
        "meta[k][c]=a&meta[k][c][]=b",
        "meta[k][c]=a&meta[k][c]=b",
        "meta[k][c][0]=+",
        "meta[k[c]=1",
        "meta[k]c]=1",
        "meta]k[=1",
        "meta[k][c]x=1",
        "meta[é][c]=1",
        "meta[k][c]=%FF",
        "%FF=1",
        "sort_by=asc",
        "sort_by[asc]=meta",
        "sort_by[asc]=Start_time",
        "sort_by[up]=start_time",
        "sort_by[asc][0]=start_time",
        "sort_by[desc]=start_time&sort_by[desc]=start_time",
        "=1",
        "[]=1",
    ],
)
def test_anything_else_is_refused(raw: str) -> None:
    with pytest.raises(InvalidQuery):
        read_query(raw)


def test_a_query_of_unreasonable_size_is_refused() -> None:
    fits = "&".join(f"meta[k][c][{i}]=v" for i in range(MAX_CONDITIONS))
    assert read_query(fits) == where(*[MetaContains("k", "v")] * MAX_CONDITIONS)
    with pytest.raises(InvalidQuery, match="conditions"):
        read_query(fits + "&runtime[gt]=1")


def test_names_are_counted_in_graphemes() -> None:
    family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}"
    assert read_query("record_id=" + quote_plus(family * 90)) == where(IdEquals(family * 90))
    with pytest.raises(InvalidQuery):
        read_query("record_id=" + "x" * 257)


def test_the_text_of_a_refusal_names_the_parameter() -> None:
    with pytest.raises(InvalidQuery, match=r"unknown field 'state', expected one of record_id, .*limit"):
        read_query("state=started")
    with pytest.raises(InvalidQuery, match=r"'start_time' has both gt and gte"):
        read_query(f"start_time[gt]={ENCODED}&start_time[gte]={ENCODED}")


# What follows mimics how AUDITOR's clients write a query, independently of how this server reads it.

Comparisons: TypeAlias = Mapping[Comparison, object]

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40).filter(
    lambda text: not text.isspace()
)
integers = st.integers(0, 2**63 - 1)
moments = st.datetimes(
    *(datetime(year, 1, 1) for year in (1970, 9000)),  # noqa: DTZ001 hypothesis wants naive bounds and adds the zone
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5, minutes=-30))]),
)


def comparisons(values: "st.SearchStrategy[object]") -> "st.SearchStrategy[Comparisons]":
    above = st.sampled_from([(), (Comparison.GT,), (Comparison.GTE,)])
    below = st.sampled_from([(), (Comparison.LT,), (Comparison.LTE,)])
    equal = st.sampled_from([(), (Comparison.EQUALS,)])
    chosen = st.tuples(above, below, equal).map(lambda parts: [item for part in parts for item in part])
    return chosen.flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, values)))


def form(text: str) -> str:
    return quote_plus(text, safe="*-._")


def written(value: object) -> str:
    return form(value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value))


def operators(prefix: str, found: Comparisons) -> list[str]:
    order = (Comparison.GT, Comparison.LT, Comparison.GTE, Comparison.LTE, Comparison.EQUALS)
    return [f"{prefix}[{operator.value}]={written(found[operator])}" for operator in order if operator in found]


@settings(max_examples=100, deadline=None)
@given(
    record_id=st.none() | names,
    times=st.fixed_dictionaries({name: comparisons(moments) for name in ("start_time", "stop_time")}),
    runtime=comparisons(integers),
    metas=st.dictionaries(names, st.tuples(st.lists(names, max_size=3), st.lists(names, max_size=3)), max_size=3),
    components=st.dictionaries(names, comparisons(integers), max_size=3),
    sort=st.none() | st.tuples(st.sampled_from(SortField), st.booleans()),
    limit=st.none() | integers,
)
def test_whatever_a_client_can_write_is_read_back(
    *,
    record_id: str | None,
    times: Mapping[str, Mapping[Comparison, datetime]],
    runtime: Mapping[Comparison, int],
    metas: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    components: Mapping[str, Mapping[Comparison, int]],
    sort: tuple[SortField, bool] | None,
    limit: int | None,
) -> None:
    pieces = [f"record_id={form(record_id)}"] if record_id is not None else []
    expected: list[Condition] = [IdEquals(record_id)] if record_id is not None else []
    for name, found in times.items():
        pieces += operators(name, found)
        expected += [TimeCompares(TimeField(name), comparison, moment) for comparison, moment in found.items()]
    pieces += operators("runtime", runtime)
    expected += [RuntimeCompares(comparison, seconds) for comparison, seconds in runtime.items()]
    for key, (wanted, unwanted) in metas.items():
        pieces += [f"meta[{form(key)}][c][{index}]={form(value)}" for index, value in enumerate(wanted)]
        pieces += [f"meta[{form(key)}][dnc][{index}]={form(value)}" for index, value in enumerate(unwanted)]
        expected += [MetaContains(key, value) for value in wanted] + [MetaLacks(key, value) for value in unwanted]
    for name, amounts in components.items():
        pieces += operators(f"component[{form(name)}]", amounts)
        expected += [ComponentCompares(name, comparison, amount) for comparison, amount in amounts.items()]
    if sort is not None:
        pieces.append(f"sort_by[{'desc' if sort[1] else 'asc'}]={sort[0].value}")
    if limit is not None:
        pieces.append(f"limit={limit}")

    query = read_query("&".join(pieces))

    assert isinstance(query.where, AllOf)
    assert Counter(query.where.conditions) == Counter(expected)
    assert query.order == (Order() if sort is None else Order(sort[0], descending=sort[1]))
    assert query.limit == limit
