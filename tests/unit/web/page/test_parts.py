"""Parts of the page that need no server: views and their URLs, numbers, charts."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from importlib.resources import files
from urllib.parse import urlsplit
from xml.etree.ElementTree import fromstring
from zoneinfo import ZoneInfo

import pytest

from auditord.reporting import Figure, LabelKeys
from auditord.reporting.measures import NOTHING, percent, with_unit
from auditord.reporting.report import name_bin
from auditord.web.page.charts import (
    Axis,
    Mark,
    Picture,
    Series,
    Sheet,
    areas,
    bars,
    compact,
    heat_map,
    lines,
    ranking,
    replace_variables,
    shade,
    ticks,
)
from auditord.web.page.figures import moves, zoom
from auditord.web.page.query_string import View, read_view
from auditord.web.page.rendering import ago, duration
from auditord.web.page.usage import command
from auditord.web.record_query import InvalidQuery
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window

NOW = datetime(2026, 11, 22, 15, tzinfo=UTC)
PAGE = files("auditord.web.page")


@pytest.mark.parametrize(
    "name", ["component[Cores][gte]", "component%5BCores%5D%5Bgte%5D", "component%5BCores%5D[gte]"]
)
def test_a_filter_keeps_its_key_however_its_brackets_are_written(name: str) -> None:
    assert read_view(f"{name}=8").query(UTC) == "component[Cores][gte]=8"


def test_a_view_is_its_url() -> None:
    filters = "meta[k][c][]=v+w&component[Cores][gte]=8"
    view = read_view(f"measure=jobs&by=user&group=a%26b&from=2026-01-01&to=2026-01-31&{filters}")
    assert read_view(urlsplit(view.url("/usage")).query) == view
    assert (view.filters, view.query(UTC)) == ((("group", "a&b"),), filters)
    assert (view.measure.name, view.by, view.period) == ("jobs", "user", "")
    window = view.window(NOW)
    assert (window.start, window.stop) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))


def test_a_link_to_another_page_has_every_filter_and_the_period_but_no_other_parameter() -> None:
    filters = "runtime[gte]=60&meta[VO][dnc][]=x"
    view = read_view(f"measure=jobs&chart=lines&top=5&outcome=failed&period=last-month&{filters}")
    assert view.jobs() == f"/jobs?outcome=failed&period=last-month&{filters}"
    listed = read_view(f"outcome=failed&sort_by[asc]=runtime&column=VO&limit=5&cursor=x,y&{filters}", "/jobs")
    assert listed.usage() == f"/usage?outcome=failed&period=all&{filters}"
    assert read_view(filters, "/my").jobs() == f"/jobs?period=30-days&{filters}"


@pytest.mark.parametrize(
    ("name", "value", "added"),
    [
        ("group", "b", {"group": "b"}),
        ("group", None, "meta[gid][absent]=true"),
        ("site", "b", "meta[sid][c][]=b"),
        ("x=y", "[v]", "meta[x%3Dy][c][]=%5Bv%5D"),
        ("meta:site", "b", "meta[site][c][]=b"),
    ],
)
def test_a_row_leads_to_one_more_filter(name: str, value: str | None, added: str | dict[str, str]) -> None:
    view = View({"site": "a"}, ("meta[x%3Dy][c][]=u",)).narrow(name, value, LabelKeys("sid", "gid", "uid"))
    more = [added] if isinstance(added, str) else []
    assert view.conditions == ("meta[x%3Dy][c][]=u", *more)
    assert view.given == {"site": "a", **({} if isinstance(added, str) else added)}
    assert read_view(urlsplit(view.url("/usage")).query) == view


def test_a_list_with_indices_takes_one_more_value() -> None:
    view = read_view("meta[VO][c][0]=a&meta%5BVO%5D%5Bc%5D%5B1%5D=b&meta[VO][any]=c")
    assert view.narrow("VO", "d", LabelKeys()).query(UTC) == (
        "meta[VO][c][]=a&meta[VO][c][]=b&meta[VO][any][]=c&meta[VO][c][]=d"
    )


@pytest.mark.parametrize(("path", "query"), [("/jobs", "measure=jobs"), ("/usage", "limit=5"), ("/my", "source=lake")])
def test_a_page_refuses_what_only_others_take(path: str, query: str) -> None:
    with pytest.raises(InvalidQuery, match="this page takes no"):
        read_view(query, path)


@pytest.mark.parametrize(
    ("period", "unit"), [("30-days", "day"), ("90-days", "week"), ("12-months", "month"), ("this-month", "day")]
)
def test_the_time_axis_fits_the_period(period: str, unit: str) -> None:
    window = View({"period": period}).window(NOW)
    assert View({"period": period}).unit(window) is CalendarUnit(unit)
    assert View({"period": period, "bin": "none"}).unit(window) is None


@pytest.mark.parametrize(
    "query",
    [
        "nothing=1",
        "measure=gold",
        "period=ever",
        "bin=hour",
        "from=yesterday",
        "label=k",
        "meta[k][like]=x",
        "component[Cores][gte]=many",
        "stop_time[lt]=tomorrow",
        "user=a&user=b",
        "group=" + "x" * 2_000,
        "by=%00",
        "top=many",
        "timezone=Moon/Base",
        "timezone=../../etc/passwd",
        "top=5000",
    ],
)
def test_what_a_url_cannot_ask_for_is_named(query: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        read_view(query)
    assert refused.value.parameter == query.split("=", maxsplit=1)[0].partition("[")[0]


@pytest.mark.parametrize("query", ["from=2026-02-01&to=2026-01-01", "from=2000-01-01&bin=day", "open=true"])
def test_a_period_that_cannot_be_shown_is_refused(query: str) -> None:
    with pytest.raises(InvalidQuery):
        read_view(query).question(NOW, LabelKeys())


def command_of(view: View, now: datetime = NOW, zone: str = "UTC") -> str:
    return command(view, view.question(now, LabelKeys()), zone)


def test_the_command_gives_the_same_view() -> None:
    view = read_view("measure=score-hours&by=none&bin=week&from=2026-01-01&to=2026-01-31&group=it%27s")
    begin = "auditord report usage --measure score-hours --by none --bin week --score HEPscore23 "
    assert command_of(view) == begin + "--from 2026-01-01 --to 2026-02-01 --filter 'group=it'\"'\"'s'"
    assert command_of(read_view("")).endswith("--by group --bin day --period 30-days")
    filtered = read_view("outcome=failed&stop_time[gte]=2026-11-01T00:00&component[Cores][gte]=8")
    assert command_of(filtered).endswith(
        "--filter outcome=failed --where 'stop_time[gte]=2026-11-01T00%3A00%3A00%2B00%3A00&component[Cores][gte]=8'"
    )
    there = NOW.astimezone(ZoneInfo("Europe/Berlin"))
    assert command_of(read_view(""), there).endswith("--period 30-days --timezone Europe/Berlin")
    assert command_of(read_view(""), zone="Europe/Berlin").endswith("--period 30-days --timezone UTC")


def test_days_of_a_view_are_those_of_the_time_zone() -> None:
    there = NOW.astimezone(ZoneInfo("Europe/Berlin"))
    window = read_view("from=2026-03-29&to=2026-03-29").window(there)
    begin, end = window.start.astimezone(UTC), window.stop.astimezone(UTC)
    assert (begin, end - begin) == (datetime(2026, 3, 28, 23, tzinfo=UTC), timedelta(hours=23))
    assert read_view("").question(there, LabelKeys()).zone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(12_345_678, "h", "12,345,678"), (Fraction(1, 3), "h", "0.333"), (7, "", "7"), (Fraction(25, 2), "%", "12.5")],
)
def test_figures_have_the_digits_of_a_glance(value: int | Fraction, unit: str, expected: str) -> None:
    assert Figure(Fraction(value)).format(unit) == expected


def test_figures_of_a_table_have_as_many_digits_and_hide_nothing() -> None:
    like = Figure(Fraction(50_000))
    assert [Figure(Fraction(each)).format("h", like) for each in ("964.8", "0.2", "0")] == ["965", "< 1", "0"]
    assert Figure(Fraction(1), Fraction(0)).format("%") == NOTHING
    changes = [
        Fraction(-1, 3),
        Fraction(7),
        Fraction(-21),
        Fraction(12_345),
    ]  # a vast one says nothing in percent
    former = Figure(Fraction(100))
    found = [Figure(100 + each).format_change(former) for each in changes]
    assert [*found, former.format_change(Figure())] == ["±0 %", "+7 %", "−21 %", "× 124", None]  # noqa: RUF001 signs


def test_times_are_told_as_people_do() -> None:
    assert [ago(NOW - timedelta(seconds=each), NOW) for each in (5, 300, 7_200, 86_400 * 3)] == [
        "5 s ago",
        "5 min ago",
        "2 h ago",
        "3 d ago",
    ]
    assert (ago(NOW + timedelta(minutes=4), NOW), ago(None, NOW)) == ("in 4 min", NOTHING)
    assert (duration(90_061), duration(None)) == ("1 d 01:01:01", NOTHING)
    assert [name_bin(date(2026, 11, 2), unit) for unit in CalendarUnit] == [
        "2 Nov",
        "2026-W45",
        "Nov 2026",
        "2026 Q4",
        "2026",
    ]
    assert [compact(each) for each in (0, 950, 12_500, 2_000_000)] == ["0", "950", "12.5 k", "2 M"]


@pytest.mark.parametrize("largest", [0, 0.03, 1, 7, 99.5, 1_234, 950_000, 7e11])
def test_an_axis_has_few_round_ticks_up_to_the_largest_value(largest: float) -> None:
    found = ticks(largest)
    assert found[0] == 0
    assert found[-1] >= largest
    assert 2 <= len(found) <= 8


LABELS = Axis([f"{day} Nov" for day in range(1, 31)])
HOSTILE = '<script>alert("1")</script>'
SERIES = [
    Series(HOSTILE, 0, [Mark(at + 1.0, f"{HOSTILE} {at}", "/jobs?a=1&b=2") for at in range(30)]),
    Series("others", 8, [Mark(None if at % 2 else 1.0, f"others {at}") for at in range(30)]),
]


@pytest.mark.parametrize("draw", [bars, areas, lines])
def test_charts_hold_titles_links_and_nothing_that_acts(draw: Callable[..., Picture | None]) -> None:
    text = str(draw("Core <hours>", LABELS, SERIES))
    picture = fromstring(text)  # noqa: S314 our own
    tags = {each.tag.rpartition("}")[2] for each in picture.iter()}
    assert not tags & {"script", "style", "desc", "foreignObject"}
    assert not any(name.startswith("on") or name == "style" for each in picture.iter() for name in each.attrib)
    titles = [each.text for each in picture.iter() if each.tag.endswith("title")]
    assert {mark.title for each in SERIES for mark in each.marks if mark.value is not None} <= set(titles)
    assert {each.get("data-series") for each in picture.iter()} >= {HOSTILE, "others"}
    assert picture.get("aria-label") == "Core <hours>"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("draw", [bars, areas, lines])
def test_nothing_makes_no_picture(draw: Callable[..., Picture | None]) -> None:
    assert draw("x", Axis([]), []) is None
    assert draw("x", Axis(["a"]), [Series("y", 0, [Mark(None, "")])]) is None


def test_a_pledge_is_a_line_at_its_height() -> None:
    text = str(bars("x", LABELS, [SERIES[1]], [15.0] * 30))
    heights = re.findall(r"M[\d.]+ ([\d.]+) H", text)
    assert len(heights) == 30
    assert len(set(heights)) == 1
    assert heights[0] in re.findall(r"M14 ([\d.]+) h", text)  # 15 is one of the ticks


def test_bars_stand_on_each_other_and_are_as_high_as_their_values() -> None:
    marks = [Series(name, at, [Mark(value, name)]) for at, (name, value) in enumerate([("a", 10.0), ("b", 30.0)])]
    found = re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', str(bars("x", Axis(["1"]), marks)))
    (low, small), (high, large) = ((float(y), float(height)) for y, height in found)
    assert large == pytest.approx(3 * small, abs=0.2)
    assert high + large == pytest.approx(low, abs=0.2)


def test_no_value_has_no_unit() -> None:
    assert [with_unit(*each) for each in (("1.5", "%"), ("7", ""), (NOTHING, "%"))] == ["1.5 %", "7", NOTHING]


def test_a_ranking_names_each_row_and_its_value() -> None:
    text = str(ranking("x", [(HOSTILE, "1,234", Mark(1_234.0, HOSTILE)), ("b", "0", Mark(0.0, "b"))]))
    texts = [each.text for each in fromstring(text).iter() if each.tag.endswith("text")]  # noqa: S314 our own
    assert texts == [HOSTILE, "1,234", "b", "0"]
    assert re.findall(r'<rect[^>]* width="([^"]+)"', text) == ["100.00%", "0.50%"]  # as wide as a phone, or a screen
    assert not ranking("x", [("b", "0", Mark(0.0, "b"))])


def test_a_heat_map_has_each_day_in_its_week_and_shade() -> None:
    days = {date(2025, 12, 30) + timedelta(days=at): Mark(float(at), f"day {at}", "/jobs") for at in range(10)}
    picture = fromstring(str(heat_map("x", days)))  # noqa: S314 our own
    squares = {
        link[0].text: (link[1].get("class"), float(link[1].get("x", "")), float(link[1].get("y", "")))
        for link in picture
        if link.tag.endswith("}a")
    }
    assert len(squares) == 10
    assert [squares[f"day {at}"][0] for at in (0, 1, 5, 9)] == ["heat-0", "heat-1", "heat-3", "heat-5"]
    assert squares["day 6"][1] > squares["day 5"][1]  # a Monday after a Sunday, in the next column
    assert squares["day 2"][2] > squares["day 1"][2]  # a Thursday below a Wednesday
    assert [shade(each, 10) for each in (None, 0, 0.1, 2, 10)] == [0, 0, 1, 2, 5]
    assert not heat_map("x", {date(2026, 1, 1): Mark(None, "")})


def test_a_sheet_has_all_that_a_reader_needs_and_every_renderer_knows() -> None:
    style = replace_variables(PAGE.joinpath("static/chart.css").read_text())
    assert "var(" not in style
    assert "#e69f00" in style
    sheet = Sheet("Core <hours>", [HOSTILE, "1 to 30 Nov"], [(f"group number {at}", at) for at in range(9)], style)
    picture = fromstring(sheet.around(bars("x", LABELS, SERIES)))  # noqa: S314 our own
    texts = [each.text for each in picture if each.tag.endswith("}text")]
    assert texts == ["Core <hours>", HOSTILE, "1 to 30 Nov", *(f"group number {at}" for at in range(9))]
    swatches = [each for each in picture if each.get("class", "").startswith("swatch")]
    assert [each.get("class") for each in swatches] == [f"swatch colour-{at}" for at in range(9)]
    places = [(float(each.get("x", "")), float(each.get("y", ""))) for each in swatches]
    assert places == sorted(places, key=lambda each: (each[1], each[0]))
    assert len({y for _, y in places}) == 2  # they do not fit one row
    assert max(x for x, _ in places) < 900
    assert float(picture.get("height", "")) > max(y for _, y in places) + 12
    assert [each.get("class") for each in picture if each.tag.endswith("}svg")] == ["chart"]


def test_a_sheet_without_a_chart_has_its_texts() -> None:
    picture = fromstring(Sheet("Core hours", ["nothing"], [], "").around(None))  # noqa: S314 our own
    assert [each.text for each in picture if each.tag.endswith("}text")] == ["Core hours", "nothing"]


def test_characters_that_xml_forbids_spoil_no_sheet() -> None:
    sheet = Sheet("a\x01b", ["c\ufffed"], [("e\x1b\N{GRINNING FACE}", 0)], "")
    chart = bars("x", LABELS, [Series("f\x0bg", 0, [Mark(1.0, "h\x1fi")] * len(LABELS.labels))])
    texts = [each.text for each in fromstring(sheet.around(chart)).iter() if each.text]  # noqa: S314 our own
    assert {"a\ufffdb", "c\ufffdd", "e\ufffd\N{GRINNING FACE}", "h\ufffdi"} <= set(texts)


def test_a_small_share_is_not_shown_as_zero() -> None:
    shares = [None, Fraction(0), Fraction(1, 999), Fraction(1, 20), Fraction(1, 19), Fraction(100)]
    assert [percent(each) for each in shares] == [NOTHING, "0.0", "< 0.1", "< 0.1", "0.1", "100.0"]


def days(first: date, end: date) -> Window:
    return Window(*(datetime.combine(day, time.min, UTC) for day in (first, end)))


@pytest.mark.parametrize(
    ("period", "earlier", "later"),
    [
        ("last-month", ("2026-09-01", "2026-09-30"), ("2026-11-01", "2026-11-30")),
        ("last-quarter", ("2026-04-01", "2026-06-30"), ("2026-10-01", "2026-12-31")),
        ("last-year", ("2024-01-01", "2024-12-31"), ("2026-01-01", "2026-12-31")),
    ],
)
@pytest.mark.parametrize("given", ["bin=none", "bin=day&by=user", "by=user&top=9&meta[VO][c][]=x"])
def test_calendar_periods_move_by_their_unit(
    period: str, earlier: tuple[str, str], later: tuple[str, str], given: str
) -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    view = read_view(f"period={period}&{given}")
    links = {
        name: read_view(urlsplit(url).query)
        for name, url in moves(view, view.window(now), view.window(now).stop.date())
    }
    assert {name: (moved.given["from"], moved.given["to"]) for name, moved in links.items()} == {
        "Earlier": earlier,
        "Zoom out": (earlier[0], later[1]),
        "Later": later,
    }
    kept = [(name, value) for name, value in view.given.items() if name != "period"]
    for name in ("Earlier", "Later"):
        left = [(key, value) for key, value in links[name].given.items() if key not in {"from", "to"}]
        assert (sorted(left), links[name].conditions) == (sorted(kept), view.conditions)
    assert links["Zoom out"].given.get("bin") == ("none" if given == "bin=none" else None)


def test_views_lead_closer_and_to_the_times_beside_them() -> None:
    view = read_view("period=12-months&by=user&bin=month")
    closer = read_view(urlsplit(zoom(view, date(2026, 2, 1), date(2026, 3, 1))).query)
    assert dict(closer.given) == {"by": "user", "from": "2026-02-01", "to": "2026-02-28"}
    spans = {
        name: [dict(read_view(urlsplit(url).query).given)[end] for end in ("from", "to")]
        for name, url in moves(view, days(date(2026, 2, 1), date(2026, 2, 11)), date(2026, 2, 11))
    }
    assert spans == {
        "Earlier": ["2026-01-22", "2026-01-31"],
        "Zoom out": ["2026-01-22", "2026-02-20"],
        "Later": ["2026-02-11", "2026-02-20"],
    }
    assert [name for name, _ in moves(view, days(date(2026, 2, 1), date(2026, 2, 12)), date(2026, 2, 11))] == [
        "Earlier",
        "Zoom out",
    ]


def test_a_heat_map_is_of_days() -> None:
    view = read_view("chart=days&bin=month")
    assert view.unit(view.window(NOW)) is CalendarUnit.DAY
