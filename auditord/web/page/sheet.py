"""A chart on a white sheet of its own, with heading and legend: as it is downloaded and put into reports.

Its rules have no variables, which office programs and other readers of SVG do not know, and no dark colours.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import escape

from auditord.web.page.drawing import WIDTH, Picture, text_at

_MARGIN: Final = 24
_WIDTH: Final = WIDTH + 2 * _MARGIN
_TITLE: Final = 42
_LINE: Final = 20
_SWATCH: Final = 12
_CHARACTER: Final = 7.4
"""Its width on average, about: nothing measures what is drawn."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The texts around a chart.

    Args:
        title: above everything.
        lines: below the title.
        keys: of the legend: names and numbers of colours.
        style: the rules of charts.
    """

    title: str
    lines: Sequence[str]
    keys: Sequence[tuple[str, int]]
    style: str

    def around(self, chart: Picture | None) -> str:
        """The whole picture; without a chart, of its texts alone."""
        top = _TITLE + _LINE * len(self.lines) + 14
        high = 0 if chart is None else chart.height
        legend = list(self._legend(top + high + _LINE))
        height = top + high + _LINE * (legend[-1][0] if legend else 0) + _MARGIN
        texts = [text_at(_MARGIN, _TITLE, self.title, css="title")]
        texts += [text_at(_MARGIN, _TITLE + _LINE * at, line) for at, line in enumerate(self.lines, start=1)]
        drawn = "" if chart is None else _placed(chart, top)
        keys = "".join(part for _, part in legend)
        size = f'width="{_WIDTH}" height="{height}"'
        begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {height}" class="sheet"'
        paper = f'<style>{self.style}</style><rect class="paper" {size}/>'
        return f'{begin} role="img" aria-label="{escape(self.title)}">{paper}{"".join(texts)}{drawn}{keys}</svg>'

    def _legend(self, top: float) -> Iterator[tuple[int, str]]:
        """The keys, each with the number of its row."""
        x, row = float(_MARGIN), 1
        for name, colour in self.keys:
            wide = 2 * _SWATCH + 16 + _CHARACTER * len(name)
            if x > _MARGIN and x + wide > WIDTH + _MARGIN:
                x, row = float(_MARGIN), row + 1
            y = top + _LINE * (row - 1)
            square = f'x="{x:.1f}" y="{y - 10:.1f}" width="{_SWATCH}" height="{_SWATCH}" rx="2"'
            yield row, f'<rect class="swatch colour-{colour}" {square}/>{text_at(x + _SWATCH + 6, y, name)}'
            x += wide


def without_variables(rules: str) -> str:
    """The rules of charts with the values that their variables have in the light."""
    before, _, rest = rules.partition(":root {")
    variables, _, used = rest.partition("}")
    values = dict(re.findall(r"--(\w+): (#\w+);", variables))
    return before + re.sub(r"var\(--(\w+)\)", lambda found: values[found[1]], used)


def _placed(chart: Picture, top: float) -> str:
    """The chart as a part of a larger picture; what is in per cent is of its own width."""
    place = f'x="{_MARGIN}" y="{top}" width="{WIDTH}" height="{chart.height}"'
    return f'<svg {place} class="{chart.css}">{chart.content}</svg>'
