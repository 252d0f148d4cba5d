"""Pictures in SVG, and their parts: marks with titles and links, texts, grids.

Colours and fonts come from the page's style sheet, by class; a picture that is downloaded brings the same rules with
it. The browser shows the title of a mark that is pointed at, and screen readers read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from markupsafe import escape

WIDTH: Final = 960

_TICKS: Final = 5
_NICE: Final = (Fraction(1), Fraction(2), Fraction(5, 2), Fraction(5), Fraction(10))


@dataclass(frozen=True, slots=True)
class Mark:
    """One value.

    Args:
        value: its size; None leaves a gap.
        title: the text for who points at it.
        link: the page that it leads to, if any.
    """

    value: float | None
    title: str
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole picture; its text is SVG.

    Args:
        title: for screen readers.
        height: in units of which the width has 960.
        content: elements.
        data: for scripts, by names that begin with ``data-``.
        is_fluid: whether it is as wide as there is room: its height is in pixels then, its widths are in per cent.
    """

    title: str
    height: int
    content: str
    data: Mapping[str, str] = field(default_factory=dict[str, str])
    is_fluid: bool = False

    @property
    def css(self) -> str:
        """The classes of its rules in the style sheet."""
        return "chart fluid" if self.is_fluid else "chart"

    def __html__(self) -> str:
        size = f'width="{WIDTH}" height="{self.height}"' if self.is_fluid else f'viewBox="0 0 {WIDTH} {self.height}"'
        data = "".join(f' {name}="{escape(value)}"' for name, value in self.data.items())
        named = f'role="group" aria-label="{escape(self.title)}"{data}'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="{self.css}" {named}>{self.content}</svg>'

    __str__ = __html__


def marked(shape: str, mark: Mark) -> str:
    """A shape with the title of its mark, and its link."""
    titled = f"<title>{escape(mark.title)}</title>{shape}"
    # the table beside the picture has the same links for the keyboard
    return f"<g>{titled}</g>" if mark.link is None else f'<a href="{escape(mark.link)}" tabindex="-1">{titled}</a>'


def rectangle(x: float, y: float, width: float, height: float, css: str = "mark", *, fill: str = "") -> str:
    """A rectangle; ``fill`` is a pattern of the picture, which no style sheet can name."""
    filled = f' fill="{fill}"' if fill else ""
    return f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{filled}/>'


def bar(y: float, per_cent: float, height: float) -> str:
    """A bar from the left edge of a fluid picture."""
    return f'<rect class="mark" y="{y:.1f}" width="{per_cent:.2f}%" height="{height:.1f}" rx="3"/>'


def text_at(x: float | str, y: float, text: str, link: str | None = None, css: str = "") -> str:
    """A text, which may be a link; ``x`` may be a number of per cent, with its sign."""
    named = f' class="{css}"' if css else ""
    left = x if isinstance(x, str) else f"{x:.1f}"
    written = f'<text{named} x="{left}" y="{y:.1f}">{escape(text)}</text>'
    return written if link is None else f'<a href="{escape(link)}">{written}</a>'


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 to at least the largest value."""
    if largest <= 0:
        return [0, 1]
    rough = Fraction(largest) / _TICKS
    power = Fraction(10) ** (len(str(int(rough))) - 1 if rough >= 1 else -len(str(int(1 / rough))))
    step = next(power * nice for nice in _NICE if power * nice >= rough)
    count = -(-Fraction(largest) // step)
    return [float(step * at) for at in range(int(count) + 1)]
