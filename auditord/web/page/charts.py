"""Charts over time and rankings, as SVG made on the server.

A page has 0.3 s. Of a year of days with nine series, libraries that draw without scripts in a browser take more
alone: pygal 0.34 s of CPU, Vega-Lite (vl-convert) 0.37 s and 84 MB on the disk. This takes 12 ms.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import escape

from auditord.web.page.drawing import WIDTH, Mark, Picture, bar, marked, rectangle, text_at, ticks
from auditord.web.page.numbers import compact

_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 14, 896, 30, 286
_WIDE: Final = _RIGHT - _LEFT
_HIGH: Final = _BOTTOM - _TOP
_MOST_LABELS: Final = 12
_CHARACTER, _LARGE_CHARACTER, _BETWEEN = 7.4, 10.0, 10
"""The widths of a character of a label, also on phones, and of what is between two labels, about."""

_FILLED: Final = 0.86
"""The part of a bin that its bar fills."""

_ROW: Final = 30

_HATCH: Final = (
    '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="3" height="7"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True)
class Series:
    """Marks of one colour.

    Args:
        name: in the legend.
        colour: the number of the colour; from 0 on.
        marks: one for each place of the axis.
    """

    name: str
    colour: int
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of time.

    Args:
        labels: one for each place.
        links: the page that a label leads to, closer to its place; none or one for each.
        days: the first day of each place and the one behind the last, for scripts that choose a range; or none.
        unit: of the values; empty for counts.
        partial: the places whose values are of a part of their bin, which are hatched.
    """

    labels: Sequence[str]
    links: Sequence[str] = ()
    days: Sequence[str] = ()
    unit: str = ""
    partial: Collection[int] = ()


def bars(title: str, axis: Axis, series: Sequence[Series], line: Sequence[float | None] = ()) -> Picture | None:
    """Stacked bars, and perhaps a stepped line above them; nothing without values."""
    return _stacked(title, axis, series, line, _bars_of)


def areas(title: str, axis: Axis, series: Sequence[Series], line: Sequence[float | None] = ()) -> Picture | None:
    """Stacked areas, and perhaps a line; nothing without values."""
    return _stacked(title, axis, series, line, _area_of)


def lines(title: str, axis: Axis, series: Sequence[Series], line: Sequence[float | None] = ()) -> Picture | None:
    """Lines with a dot for each value; nothing without values."""
    if not _has_values(series):
        return None
    values = [mark.value for each in series for mark in each.marks if mark.value is not None]
    top = ticks(max(*values, *_amounts(line), 0))[-1]
    parts = [_group(each, _dots_of(each, axis.partial, top)) for each in series]
    return _over_time(title, axis, top, [*parts, _pledge(line, top)])


def ranking(title: str, rows: Sequence[tuple[str, str, Mark]]) -> Picture | None:
    """Bars behind names and values, in the order of the rows, as wide as there is room; nothing without values."""
    largest = max((mark.value or 0 for _, _, mark in rows), default=0)
    if not largest:
        return None
    parts: list[str] = []
    for at, (name, value, mark) in enumerate(rows):
        base = _ROW * at + _ROW / 2 + 5
        parts.append(marked(bar(_ROW * at + 2, max(100 * (mark.value or 0) / largest, 0.5), _ROW - 4), mark))
        parts.append(text_at(8, base, name, css="begin"))
        parts.append(text_at("99%", base, value, css="end"))
    return Picture(title, _ROW * len(rows), f'<g class="series colour-0">{"".join(parts)}</g>', is_fluid=True)


def _stacked(
    title: str,
    axis: Axis,
    series: Sequence[Series],
    line: Sequence[float | None],
    shapes: Callable[[Series, Sequence[Series], float], Iterator[str]],
) -> Picture | None:
    if not _has_values(series):
        return None
    top = ticks(max(*_sums(axis, series), *_amounts(line), 0))[-1]
    parts = [_group(each, shapes(each, series[:at], top)) for at, each in enumerate(series)]
    hatched = _hatched(axis, series, top, are_areas=shapes is _area_of)
    return _over_time(title, axis, top, [*parts, *hatched, _pledge(line, top)])


def _hatched(axis: Axis, series: Sequence[Series], top: float, *, are_areas: bool) -> Iterator[str]:
    """Stripes in the colour of the ground over the shapes of partial bins."""
    if axis.partial:
        yield _HATCH
    places, sums, filled = len(axis.labels), _sums(axis, series), 1.0 if are_areas else _FILLED
    for at in axis.partial:
        x, y = _x(at + (1 - filled) / 2, places), _TOP if are_areas else _y(sums[at], top)
        yield rectangle(x, y, _WIDE / places * filled, _BOTTOM - y, "hatched", fill="url(#hatch)")


def _has_values(series: Sequence[Series]) -> bool:
    return any(mark.value for each in series for mark in each.marks)


def _sums(axis: Axis, series: Sequence[Series]) -> list[float]:
    return [sum(each.marks[at].value or 0 for each in series) for at in range(len(axis.labels))]


def _amounts(line: Sequence[float | None]) -> list[float]:
    return [value or 0 for value in line]


def _x(at: float, places: int) -> float:
    return _LEFT + _WIDE * at / places


def _y(value: float, top: float) -> float:
    return _BOTTOM - _HIGH * value / top


def _group(series: Series, shapes: Iterator[str]) -> str:
    return f'<g class="series colour-{series.colour}" data-series="{escape(series.name)}">{"".join(shapes)}</g>'


def _below(series: Sequence[Series], at: int) -> float:
    return sum(each.marks[at].value or 0 for each in series)


def _bars_of(series: Series, below: Sequence[Series], top: float) -> Iterator[str]:
    places = len(series.marks)
    wide = _WIDE / places * _FILLED
    for at, mark in enumerate(series.marks):
        if mark.value:
            base = _below(below, at)
            upper = _y(base + mark.value, top)
            x = _x(at + (1 - _FILLED) / 2, places)
            yield marked(rectangle(x, upper, wide, _y(base, top) - upper), mark)


def _area_of(series: Series, below: Sequence[Series], top: float) -> Iterator[str]:
    """One shape, and upon it an unseen bar for each value, with its title and link."""
    places = len(series.marks)
    bases = [_below(below, at) for at in range(places)]
    upper = [
        f"{_x(at + 0.5, places):.1f} {_y(bases[at] + (series.marks[at].value or 0), top):.1f}" for at in range(places)
    ]
    lower = [f"{_x(at + 0.5, places):.1f} {_y(bases[at], top):.1f}" for at in reversed(range(places))]
    yield f'<path class="mark" d="M{" L".join([*upper, *lower])} Z"/>'
    for at, mark in enumerate(series.marks):
        if mark.value:
            y = _y(bases[at] + mark.value, top)
            yield marked(rectangle(_x(at, places), y, _WIDE / places, _y(bases[at], top) - y, "unseen"), mark)


def _dots_of(series: Series, partial: Collection[int], top: float) -> Iterator[str]:
    """A line, and upon it a dot for each value, which is hollow if the value is of a part of its bin."""
    places, begun, path, dots = len(series.marks), False, list[str](), list[str]()
    for at, mark in enumerate(series.marks):
        if mark.value is None:
            begun = False
            continue
        x, y = _x(at + 0.5, places), _y(mark.value, top)
        path.append(f"{'L' if begun else 'M'}{x:.1f} {y:.1f}")
        css = "mark hollow" if at in partial else "mark"
        dots.append(marked(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>', mark))
        begun = True
    yield f'<path class="line" d="{" ".join(path)}"/>'
    yield from dots


def _pledge(values: Sequence[float | None], top: float) -> str:
    steps = [
        f"M{_x(at, len(values)):.1f} {_y(value, top):.1f} H{_x(at + 1, len(values)):.1f}"
        for at, value in enumerate(values)
        if value is not None
    ]
    return f'<path class="pledge" d="{" ".join(steps)}"/>' if steps else ""


def _over_time(title: str, axis: Axis, top: float, parts: Sequence[str]) -> Picture:
    data = {"data-days": " ".join(axis.days), "data-plot": f"{_LEFT} {_WIDE} {_TOP} {_HIGH}"} if axis.days else {}
    content = [*_grid(top, axis.unit), *parts, *_labels(axis, len(axis.labels))]
    return Picture(title, _HEIGHT, "".join(content), data)


def _grid(top: float, unit: str) -> Iterator[str]:
    if unit:
        yield text_at(WIDTH, _TOP - 16, unit, css="end")
    for tick in ticks(top):
        y = _y(tick, top)
        yield f'<path class="{"guide" if tick else "base"}" d="M{_LEFT} {y:.1f} h{_WIDE}"/>'
        yield text_at(_RIGHT + 8, y + 4, compact(tick), css="begin")  # beside the latest, which phones show first


def _labels(axis: Axis, places: int) -> Iterator[str]:
    """As many as there is room for; phones, which write them larger, leave each second one out if these are close."""
    characters = max(map(len, axis.labels))
    most = min(_MOST_LABELS, int(_WIDE / (_CHARACTER * characters + _BETWEEN)))
    step = -(-places // most)
    is_close = _WIDE * step / places < _LARGE_CHARACTER * characters + _BETWEEN
    for number, at in enumerate(range(0, places, step)):
        link = axis.links[at] if axis.links else None
        css = "second" if is_close and number % 2 else ""
        x = max(_x(at + 0.5, places), _CHARACTER * len(axis.labels[at]) / 2)  # the first one is not cut off
        yield text_at(x, _BOTTOM + 20, axis.labels[at], link, css)
