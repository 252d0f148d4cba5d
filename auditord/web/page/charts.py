"""Charts as SVG, drawn by pygal on the server: bars over time, lines over time, rankings.

pygal draws; what it adds for browsers of its own (a script from another server, styles, hidden texts) is taken out, and
each mark gets a title instead, which browsers show and screen readers read. Colours come from the page's style sheet,
by class; a picture that is downloaded brings the same rules with it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, fromstring, register_namespace, tostring

from auditord.web.page.numbers import compact

_WIDTH: Final = 960
_HEIGHT: Final = 320
_TICKS: Final = 5
_MOST_LABELS: Final = 12
_NICE: Final = (Fraction(1), Fraction(2), Fraction(5, 2), Fraction(5), Fraction(10))
_SPACE: Final = "http://www.w3.org/2000/svg"
_SVG: Final = f"{{{_SPACE}}}"
_UNWANTED: Final = {"defs", "title", "overlay", "text-overlay", "tooltip-overlay", "titles"}
_MARGIN: Final = 0.0192
"""The part of its height that pygal leaves free above and below the values of a plot."""

register_namespace("", _SPACE)


@dataclass(frozen=True, slots=True)
class Mark:
    """One value of a series.

    Args:
        value: its size; None leaves a gap.
        title: what it says when it is pointed at.
        link: where it leads, if anywhere.
    """

    value: float | None
    title: str
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Marks of one colour.

    Args:
        name: in the legend.
        colour: the number of the colour; from 0 on.
        marks: one for each label of the axis.
    """

    name: str
    colour: int
    marks: Sequence[Mark]


def bars(title: str, labels: Sequence[str], series: Sequence[Series], line: Series | None = None) -> str:
    """Stacked bars, and perhaps a line above them; nothing without values."""
    if not _has_values(series):
        return ""
    sums = [sum(each.marks[at].value or 0 for each in series) for at in range(len(labels))]
    sums += [] if line is None else [mark.value or 0 for mark in line.marks]
    chart = _new("StackedBar", labels, max(sums, default=0), spacing=2 if len(labels) > _MOST_LABELS else 10)
    for each in series:
        chart.add(each.name, [mark.value for mark in each.marks])
    picture = _picture(chart, series, title)
    if line is not None:
        _add_line(picture, line, len(labels), max(sums, default=0))
    return _text(picture)


def lines(title: str, labels: Sequence[str], series: Sequence[Series]) -> str:
    """Lines with a dot for each value; nothing without values."""
    if not _has_values(series):
        return ""
    values = [mark.value for each in series for mark in each.marks if mark.value is not None]
    chart = _new("Line", labels, max(values, default=0), dots_size=3)
    for each in series:
        chart.add(each.name, [mark.value for mark in each.marks])
    return _text(_picture(chart, series, title))


def _has_values(series: Sequence[Series]) -> bool:
    return any(mark.value for each in series for mark in each.marks)


@cache
def _pygal() -> Any:  # Any: it has no types
    """The library, without its finder of modules: Python warns of that at every import from then on."""
    library = import_module("pygal")
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "pygal"]
    return library


def _new(kind: str, labels: Sequence[str], largest: float, **options: Any) -> Any:  # Any: pygal has no types
    chart = getattr(_pygal(), kind)(
        width=_WIDTH,
        height=_HEIGHT,
        margin=6,
        margin_right=14,
        show_legend=False,
        disable_xml_declaration=True,
        no_prefix=True,
        js=(),
        truncate_label=-1,
        show_minor_x_labels=False,
        value_formatter=compact,
        **options,
    )
    chart.x_labels = list(labels)
    every = max(1, -(-len(labels) // _MOST_LABELS))
    chart.x_labels_major = list(labels)[::every]
    chart.x_labels_major_every = every
    chart.y_labels = ticks(largest)
    chart.range = (0, chart.y_labels[-1])
    return chart


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 to at least the largest value."""
    if largest <= 0:
        return [0, 1]
    rough = Fraction(largest) / _TICKS
    power = Fraction(10) ** (len(str(int(rough))) - 1 if rough >= 1 else -len(str(int(1 / rough))))
    step = next(power * nice for nice in _NICE if power * nice >= rough)
    count = -(-Fraction(largest) // step)
    return [float(step * at) for at in range(int(count) + 1)]


def _picture(chart: Any, series: Sequence[Series], title: str) -> Element:  # Any: see above
    root = fromstring(chart.render(is_unicode=True))  # noqa: S314 pygal's own text
    for group in list(root):
        if _UNWANTED & {group.tag.removeprefix(_SVG), *group.get("class", "").split()}:
            root.remove(group)
    for at, each in enumerate(series):
        groups = [group for group in root.iter() if f"serie-{at}" in _classes(group)]
        drawn = [found for group in groups for found in _marks(group)]
        # pygal leaves gaps of lines out, and draws those of stacked bars without a height
        all_drawn = len(drawn) == len(each.marks)
        marks = each.marks if all_drawn else [mark for mark in each.marks if mark.value is not None]
        for found, mark in zip(drawn, marks, strict=True):
            _entitle(found, mark)
        for group in groups:
            group.set("class", f"series colour-{each.colour}")
            group.set("data-series", each.name)
    for found in root.iter():
        found.attrib.pop("style", None)  # the page's policy refuses it
    root.attrib.pop("id", None)
    root.attrib |= {"class": "chart", "role": "group", "aria-label": title}
    return root


def _marks(group: Element) -> list[Element]:
    return [found for found in group.iter() if _classes(found) & {"bar", "dots"}]


def _entitle(found: Element, mark: Mark) -> None:
    """Give a drawn mark its title and its link, instead of pygal's texts for scripts."""
    for hidden in found.findall(f"{_SVG}desc"):
        found.remove(hidden)
    shapes = list(found)
    for shape in shapes:
        found.remove(shape)
        shape.attrib.pop("rx", None)
        shape.attrib.pop("ry", None)
        shape.set("class", "mark")
    if mark.value is None:
        return
    inner = found
    if mark.link is not None:
        inner = SubElement(found, f"{_SVG}a", {"href": mark.link, "tabindex": "-1"})
    SubElement(inner, f"{_SVG}title").text = mark.title
    inner.extend(shapes)


def _add_line(picture: Element, line: Series, places: int, largest: float) -> None:
    """A stepped line over the bars, in the plot's own units."""
    plot = next(found for found in picture.iter() if "plot" in _classes(found))
    frame = next(found for found in plot if "background" in _classes(found))
    width, height = float(frame.get("width", "0")), float(frame.get("height", "0"))
    top = ticks(largest)[-1]
    margin = _MARGIN * height
    steps: list[str] = []
    for at, mark in enumerate(line.marks):
        if mark.value is not None:
            y = height - margin - (height - 2 * margin) * mark.value / top
            steps.append(f"M{width * at / places:.1f} {y:.1f} H{width * (at + 1) / places:.1f}")
    path = SubElement(plot, f"{_SVG}path", {"d": " ".join(steps), "class": "pledge"})
    SubElement(path, f"{_SVG}title").text = line.name


def _classes(element: Element) -> set[str]:
    return set(element.get("class", "").split())


def _text(picture: Element) -> str:
    return tostring(picture, encoding="unicode")
