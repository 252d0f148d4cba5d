"""Charts as SVG, drawn on the server: stacked bars and areas, lines, rankings, heat maps of days, sheets for download.

The page's style sheet sets colours and fonts, by class. A downloaded picture contains the same rules. Browsers show the
title of a mark under the pointer, and screen readers read it.

No library is used, because a page must be ready within 0.3 s. For a year of days with nine series, pygal takes 0.34 s
of CPU, Vega-Lite (vl-convert) 0.37 s and 84 MB on the disk; this module takes 12 ms.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from fractions import Fraction
from typing import Final

import msgspec
from markupsafe import escape

WIDTH: Final = 960

_TICKS: Final = 5
_STEPS: Final = ((Fraction(10**9), "G"), (Fraction(10**6), "M"), (Fraction(10**3), "k"))
_NICE: Final = (Fraction(1), Fraction(2), Fraction(5, 2), Fraction(5), Fraction(10))


class Mark(msgspec.Struct, frozen=True):
    """One value.

    Args:
        value: None leaves a gap.
        title: the text that is shown under the pointer.
        link: the URL to link to, if any.
    """

    value: float | None
    title: str
    link: str | None = None


class Picture(msgspec.Struct, frozen=True):
    """A complete picture. ``str()`` returns its SVG.

    Args:
        title: for screen readers.
        height: the height in units; the width is 960 units.
        data: ``data-`` attributes for scripts, by name.
        is_fluid: whether it fills the available width. Its height is then in pixels, and its widths are percentages.
    """

    title: str
    height: int
    content: str
    data: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    is_fluid: bool = False

    @property
    def css(self) -> str:
        return "chart fluid" if self.is_fluid else "chart"

    def __html__(self) -> str:
        size = f'width="{WIDTH}" height="{self.height}"' if self.is_fluid else f'viewBox="0 0 {WIDTH} {self.height}"'
        data = "".join(f' {name}="{escape(value)}"' for name, value in self.data.items())
        named = f'role="group" aria-label="{escape(self.title)}"{data}'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="{self.css}" {named}>{self.content}</svg>'

    __str__ = __html__


def mark_shape(shape: str, mark: Mark) -> str:
    """Return a shape with the title of its mark, and its link."""
    titled = f"<title>{escape(mark.title)}</title>{shape}"
    # Not in the tab order: the table beside the picture has the same links.
    return f"<g>{titled}</g>" if mark.link is None else f'<a href="{escape(mark.link)}" tabindex="-1">{titled}</a>'


def rectangle(x: float, y: float, width: float, height: float, css: str = "mark", *, fill: str = "") -> str:
    """Return a rectangle. ``fill`` is the URL of a pattern in the picture, to which style sheets cannot refer."""
    filled = f' fill="{fill}"' if fill else ""
    return f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{filled}/>'


def bar(y: float, per_cent: float, height: float) -> str:
    """Return a bar from the left edge of a fluid picture."""
    return f'<rect class="mark" y="{y:.1f}" width="{per_cent:.2f}%" height="{height:.1f}" rx="3"/>'


def text_at(x: float | str, y: float, text: str, link: str | None = None, css: str = "") -> str:
    """Return a text, with an optional link; ``x`` is a number or a percentage such as ``99%``."""
    named = f' class="{css}"' if css else ""
    left = x if isinstance(x, str) else f"{x:.1f}"
    written = f'<text{named} x="{left}" y="{y:.1f}">{escape(text)}</text>'
    return written if link is None else f'<a href="{escape(link)}">{written}</a>'


def ticks(largest: float) -> list[float]:
    """Return round numbers from 0 to at least the largest value."""
    if largest <= 0:
        return [0, 1]
    rough = Fraction(largest) / _TICKS
    power = Fraction(10) ** (len(str(int(rough))) - 1 if rough >= 1 else -len(str(int(1 / rough))))
    step = next(power * nice for nice in _NICE if power * nice >= rough)
    count = -(-Fraction(largest) // step)
    return [float(step * at) for at in range(int(count) + 1)]


_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 14, 896, 30, 286
_WIDE: Final = _RIGHT - _LEFT
_HIGH: Final = _BOTTOM - _TOP
_MOST_LABELS: Final = 12
_CHARACTER, _LARGE_CHARACTER, _BETWEEN = 7.4, 10.0, 10
"""Approximate widths of a label's character, of the same on phones, and of the space between two labels."""

_FILLED: Final = 0.86
"""The fraction of a bin's width that its bar fills."""

_ROW: Final = 30

_HATCH: Final = (
    '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="3" height="7"/></pattern></defs>'
)


class Series(msgspec.Struct, frozen=True):
    """Marks of one colour.

    Args:
        name: the name in the legend.
        colour: the number of the colour, from 0 on.
        marks: one for each bin of the axis.
    """

    name: str
    colour: int
    marks: Sequence[Mark]


class Axis(msgspec.Struct, frozen=True):
    """A time axis.

    Args:
        labels: one for each bin.
        links: for each label the URL that zooms in on it; or none.
        days: the first day of each bin and the day after the last, for the script that selects a range; or none.
        unit: the unit of the values; empty for counts.
        partial: the numbers of the bins that are covered only in part, which are hatched.
    """

    labels: Sequence[str]
    links: Sequence[str] = ()
    days: Sequence[str] = ()
    unit: str = ""
    partial: Collection[int] = ()


def bars(title: str, axis: Axis, series: Sequence[Series], line: Sequence[float | None] = ()) -> Picture | None:
    """Return stacked bars, with an optional stepped line above them; None if there are no values."""
    return _stack(title, axis, series, line, _bars_of)


def areas(title: str, axis: Axis, series: Sequence[Series], line: Sequence[float | None] = ()) -> Picture | None:
    """Return stacked areas, with an optional stepped line; None if there are no values."""
    return _stack(title, axis, series, line, _area_of)


def lines(title: str, axis: Axis, series: Sequence[Series], line: Sequence[float | None] = ()) -> Picture | None:
    """Return lines with a dot for each value, hollow if it covers only part of its bin; None if there are no values."""
    if not _has_values(series):
        return None
    values = [mark.value for each in series for mark in each.marks if mark.value is not None]
    top = ticks(max(*values, *filter(None, line), 0))[-1]
    groups: list[str] = []
    for each in series:
        is_joined, path, dots = False, list[str](), list[str]()
        for at, mark in enumerate(each.marks):
            if mark.value is not None:
                x, y = _x(at + 0.5, len(each.marks)), _y(mark.value, top)
                path.append(f"{'L' if is_joined else 'M'}{x:.1f} {y:.1f}")
                css = "mark hollow" if at in axis.partial else "mark"
                dots.append(mark_shape(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>', mark))
            is_joined = mark.value is not None
        groups.append(_group(each, [f'<path class="line" d="{" ".join(path)}"/>', *dots]))
    return _over_time(title, axis, top, groups, line)


def ranking(title: str, rows: Sequence[tuple[str, str, Mark]]) -> Picture | None:
    """Return a fluid picture of bars behind names and values, in the order of the rows; None without values."""
    largest = max((mark.value or 0 for _, _, mark in rows), default=0)
    if not largest:
        return None
    parts: list[str] = []
    for at, (name, value, mark) in enumerate(rows):
        base = _ROW * at + _ROW / 2 + 5
        parts.append(mark_shape(bar(_ROW * at + 2, max(100 * (mark.value or 0) / largest, 0.5), _ROW - 4), mark))
        parts.append(text_at(8, base, name, css="begin"))
        parts.append(text_at("99%", base, value, css="end"))
    return Picture(title, _ROW * len(rows), f'<g class="series colour-0">{"".join(parts)}</g>', is_fluid=True)


def _stack(
    title: str,
    axis: Axis,
    series: Sequence[Series],
    line: Sequence[float | None],
    shapes: Callable[[Series, Sequence[Series], float], Iterator[str]],
) -> Picture | None:
    if not _has_values(series):
        return None
    bins = len(axis.labels)
    sums = [_sum_up(series, at) for at in range(bins)]
    top = ticks(max(*sums, *filter(None, line), 0))[-1]
    parts = [_group(each, shapes(each, series[:at], top)) for at, each in enumerate(series)]
    are_areas = shapes is _area_of
    filled = 1.0 if are_areas else _FILLED
    parts += [_HATCH] if axis.partial else []
    for at in axis.partial:  # stripes in the background colour
        x, y = _x(at + (1 - filled) / 2, bins), _TOP if are_areas else _y(sums[at], top)
        parts.append(rectangle(x, y, _WIDE / bins * filled, _BOTTOM - y, "hatched", fill="url(#hatch)"))
    return _over_time(title, axis, top, parts, line)


def _has_values(series: Sequence[Series]) -> bool:
    return any(mark.value for each in series for mark in each.marks)


def _x(at: float, bins: int) -> float:
    return _LEFT + _WIDE * at / bins


def _y(value: float, top: float) -> float:
    return _BOTTOM - _HIGH * value / top


def _group(series: Series, shapes: Iterable[str]) -> str:
    return f'<g class="series colour-{series.colour}" data-series="{escape(series.name)}">{"".join(shapes)}</g>'


def _sum_up(series: Sequence[Series], at: int) -> float:
    return sum(each.marks[at].value or 0 for each in series)


def _bars_of(series: Series, below: Sequence[Series], top: float) -> Iterator[str]:
    bins = len(series.marks)
    wide = _WIDE / bins * _FILLED
    for at, mark in enumerate(series.marks):
        if mark.value:
            base = _sum_up(below, at)
            upper = _y(base + mark.value, top)
            x = _x(at + (1 - _FILLED) / 2, bins)
            yield mark_shape(rectangle(x, upper, wide, _y(base, top) - upper), mark)


def _area_of(series: Series, below: Sequence[Series], top: float) -> Iterator[str]:
    """Yield one shape, then an invisible bar over it for each value, with the title and the link."""
    bins = len(series.marks)
    bases = [_sum_up(below, at) for at in range(bins)]
    upper = [f"{_x(at + 0.5, bins):.1f} {_y(bases[at] + (series.marks[at].value or 0), top):.1f}" for at in range(bins)]
    lower = [f"{_x(at + 0.5, bins):.1f} {_y(bases[at], top):.1f}" for at in reversed(range(bins))]
    yield f'<path class="mark" d="M{" L".join([*upper, *lower])} Z"/>'
    for at, mark in enumerate(series.marks):
        if mark.value:
            y = _y(bases[at] + mark.value, top)
            yield mark_shape(rectangle(_x(at, bins), y, _WIDE / bins, _y(bases[at], top) - y, "unseen"), mark)


def _over_time(title: str, axis: Axis, top: float, shapes: Sequence[str], pledge: Sequence[float | None]) -> Picture:
    """Return a picture of shapes and a stepped line, with a grid and labels."""
    content = [text_at(WIDTH, _TOP - 16, axis.unit, css="end")] if axis.unit else []
    for tick in ticks(top):
        y = _y(tick, top)
        content.append(f'<path class="{"guide" if tick else "base"}" d="M{_LEFT} {y:.1f} h{_WIDE}"/>')
        # Next to the latest bins, which phones show first.
        content.append(text_at(_RIGHT + 8, y + 4, compact(tick), css="begin"))

    bins = len(axis.labels)
    steps = [
        f"M{_x(at, bins):.1f} {_y(value, top):.1f} H{_x(at + 1, bins):.1f}"
        for at, value in enumerate(pledge)
        if value is not None
    ]
    content += [*shapes, f'<path class="pledge" d="{" ".join(steps)}"/>' if steps else ""]

    # As many labels as fit. Phones draw them larger and hide every second one if they are close.
    characters = max(map(len, axis.labels))
    most = min(_MOST_LABELS, int(_WIDE / (_CHARACTER * characters + _BETWEEN)))
    step = -(-bins // most)
    is_close = _WIDE * step / bins < _LARGE_CHARACTER * characters + _BETWEEN
    for number, at in enumerate(range(0, bins, step)):
        link = axis.links[at] if axis.links else None
        css = "second" if is_close and number % 2 else ""
        x = max(_x(at + 0.5, bins), _CHARACTER * len(axis.labels[at]) / 2)  # keeps the first label from being cut off
        content.append(text_at(x, _BOTTOM + 20, axis.labels[at], link, css))
    data = {"data-days": " ".join(axis.days), "data-plot": f"{_LEFT} {_WIDE} {_TOP} {_HIGH}"} if axis.days else {}
    return Picture(title, _HEIGHT, "".join(content), data)


SHADES: Final = 5

_HEAT_LEFT: Final = 52
_WEEKS: Final = 53
_STEP: Final = (WIDTH - _HEAT_LEFT) / _WEEKS
_SIZE: Final = _STEP - 2.5
_HEAT_TOP: Final = 24
_BLOCK: Final = round(_HEAT_TOP + 7 * _STEP + 12)
_WEEKDAYS: Final = (0, 2, 4)
_A_MONDAY: Final = date(2024, 1, 1)


def heat_map(title: str, days: Mapping[date, Mark], unit: str = "") -> Picture | None:
    """Return a square for each day, darker for larger values; None if there are no values.

    Rows are weekdays, columns are weeks, in blocks of 53 weeks.
    """
    largest = max((mark.value or 0 for mark in days.values()), default=0)
    if not largest:
        return None
    first = min(days)
    monday = first - timedelta(days=first.weekday())
    foot = ((max(days) - monday).days // 7 // _WEEKS + 1) * _BLOCK
    parts: list[str] = []
    for top in range(0, foot, _BLOCK):
        for weekday in _WEEKDAYS:
            name = f"{_A_MONDAY + timedelta(days=weekday):%a}"
            parts.append(text_at(_HEAT_LEFT - 8, top + _HEAT_TOP + (weekday + 0.7) * _STEP, name, css="end"))

    for day in sorted(days):
        block, column = divmod((day - monday).days // 7, _WEEKS)
        x, top = _HEAT_LEFT + column * _STEP, block * _BLOCK
        if day.day == 1:  # above the first week of the month
            parts.append(text_at(x, top + 14, f"{day:%Y}" if day.month == 1 else f"{day:%b}", css="begin"))
        css = f"heat-{shade(days[day].value, largest)}"
        parts.append(mark_shape(rectangle(x, top + _HEAT_TOP + day.weekday() * _STEP, _SIZE, _SIZE, css), days[day]))

    x, base = WIDTH - 140 - (SHADES + 1) * _STEP, foot + 0.7 * _STEP
    most = f"{compact(largest)} {unit}".rstrip()
    parts.append(text_at(x - 8, base, "0", css="end"))
    parts += [rectangle(x + at * _STEP, foot, _SIZE, _SIZE, f"heat-{at}") for at in range(SHADES + 1)]
    parts.append(text_at(x + (SHADES + 1) * _STEP + 4, base, most, css="begin"))
    return Picture(title, round(foot + _STEP + 8), "".join(parts))


def shade(value: float | None, largest: float) -> int:
    """Return the shade of a value: 0 for no value, else 1 to 5 in equal steps."""
    return min(SHADES, 1 + int(SHADES * value / largest)) if value else 0


_MARGIN: Final = 24
_SHEET_WIDTH: Final = WIDTH + 2 * _MARGIN
_TITLE: Final = 42
_LINE: Final = 20
_SWATCH: Final = 12
# Browsers show these characters on pages, but no program opens a file with them.
_NOT_IN_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Sheet(msgspec.Struct, frozen=True):
    """A downloadable white sheet around a chart: heading, legend, and style rules in the file.

    The rules have no CSS variables, which office programs do not understand, and no dark colours.

    Args:
        lines: the lines below the title.
        legend: names and colour numbers.
        style: the CSS rules of charts.
    """

    title: str
    lines: Sequence[str]
    legend: Sequence[tuple[str, int]]
    style: str

    def around(self, chart: Picture | None) -> str:
        """Return the SVG of the sheet; without a chart, only its texts."""
        top = _TITLE + _LINE * len(self.lines) + 14
        high = 0 if chart is None else chart.height
        legend, x, y = list[str](), float(_MARGIN), top + high + (_LINE if self.legend else 0)
        for name, colour in self.legend:
            wide = 2 * _SWATCH + 16 + _CHARACTER * len(name)
            if x > _MARGIN and x + wide > WIDTH + _MARGIN:
                x, y = float(_MARGIN), y + _LINE
            square = f'x="{x:.1f}" y="{y - 10:.1f}" width="{_SWATCH}" height="{_SWATCH}" rx="2"'
            legend.append(f'<rect class="swatch colour-{colour}" {square}/>{text_at(x + _SWATCH + 6, y, name)}')
            x += wide
        height = y + _MARGIN
        parts = [text_at(_MARGIN, _TITLE, self.title, css="title")]
        parts += [text_at(_MARGIN, _TITLE + _LINE * at, line) for at, line in enumerate(self.lines, start=1)]
        if chart is not None:  # a nested SVG, so that its percentages refer to its own width
            box = f'x="{_MARGIN}" y="{top}" width="{WIDTH}" height="{chart.height}"'
            parts.append(f'<svg {box} class="{chart.css}">{chart.content}</svg>')
        size = f'width="{_SHEET_WIDTH}" height="{height}"'
        begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_SHEET_WIDTH} {height}" class="sheet"'
        paper = f'<style>{self.style}</style><rect class="paper" {size}/>'
        sheet = f'{begin} role="img" aria-label="{escape(self.title)}">{paper}{"".join([*parts, *legend])}</svg>'
        return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", sheet)


def replace_variables(rules: str) -> str:
    """Return the CSS rules of charts with each variable replaced by its value in the light theme."""
    before, _, rest = rules.partition(":root {")
    variables, _, used = rest.partition("}")
    values = dict(re.findall(r"--(\w+): (#\w+);", variables))
    return before + re.sub(r"var\(--(\w+)\)", lambda found: values[found[1]], used)


def compact(value: float) -> str:
    """Return a number in few characters, for axes: 12.5 k."""
    exact = Fraction(value).limit_denominator(10**6)
    for size, letter in _STEPS:
        if abs(exact) >= size:
            return f"{float(exact / size):.3g} {letter}"
    return f"{float(exact):.3g}"
