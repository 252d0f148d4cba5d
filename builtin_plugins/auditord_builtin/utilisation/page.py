"""A report as a page of HTML that mail programs show as it is meant, down to the width of a phone.

Bars are cells of tables with a width and a background: no picture to be blocked or attached, no style sheet to be
thrown away, no script. One column, no width in pixels but an upper limit, at most two cells side by side.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from html import escape
from typing import Final

from auditord_builtin.utilisation.config import Level
from auditord_builtin.utilisation.figures import Figures
from auditord_builtin.utilisation.report import Report, Row
from auditord_builtin.utilisation.tables import UNKNOWN, and_more, heading, label, name_of, number, percent

_BODY: Final = (
    "margin:0;padding:12px;background:#ffffff;color:#1f2933;font:16px/1.4 Helvetica,Arial,sans-serif;"
    "-webkit-text-size-adjust:100%"
)
_TABLE: Final = 'role="presentation" width="100%" cellpadding="0" cellspacing="0" border="0"'
_NAME: Final = "padding:2px 8px 2px 0;word-break:break-word"
_VALUE: Final = "padding:2px 0;white-space:nowrap"
_HINT: Final = "font-size:13px;color:#52606d"
_HELD: Final = "#2a6f97"
_EMPTY: Final = "#e4e7eb"


def as_html(report: Report, most_rows: int | None = None) -> str:
    """The page.

    Args:
        report: what it shows.
        most_rows: how many groups, and how many users, it lists of all sites together and of each.
    """
    title = escape(heading(report))
    parts = [
        f'<h1 style="font-size:22px;margin:0 0 12px">{title}</h1>',
        _figures(report.total.figures, report.benchmark),
        *_all_sites(report, most_rows),
        *[part for site in report.sites for part in _site(report, site, most_rows)],
        *[f'<p style="{_HINT};margin:8px 0">{escape(note)}</p>' for note in report.notes],
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title></head>\n<body style="{_BODY}">\n'
        '<div style="max-width:640px;margin:0 auto">\n' + "\n".join(parts) + "\n</div>\n</body></html>\n"
    )


def _figures(figures: Figures, benchmark: str) -> str:
    named = {
        "Jobs": f"{figures.jobs:,}",
        "Core hours": number(figures.core_hours),
        f"Benchmark hours (thousands, {benchmark})": number(figures.khs23h, 3),
        "CPU efficiency": percent(figures.cpu_efficiency),
        "Idle core hours": number(figures.idle_core_hours),
        "Memory efficiency": percent(figures.memory_efficiency),
        "Memory asked for and not used (GiB h)": number(figures.idle_memory),
        "GPU hours": number(figures.gpu_hours) if figures.gpu_hours else UNKNOWN,
        "Energy (kWh)": number(figures.energy),
        "CO2 (kg)": number(figures.co2),
    }
    rows = [_pair(escape(name), value) for name, value in named.items() if value != UNKNOWN]
    return f"<table {_TABLE}>{''.join(rows)}</table>"


def _pair(name: str, value: str) -> str:
    return f'<tr><td style="{_NAME}">{name}</td><td align="right" style="{_VALUE}">{value}</td></tr>'


def _all_sites(report: Report, most_rows: int | None) -> Iterator[str]:
    groups, users = report.totals(Level.GROUP_TOTAL), report.totals(Level.USER_TOTAL)
    if groups or users:
        yield _heading("All sites")
    yield from _charts("groups", groups, most_rows)
    yield from _charts("users", users, most_rows)


def _site(report: Report, site: str | None, most_rows: int | None) -> Iterator[str]:
    yield _heading(name_of(site, "site"))
    for row in report.of(Level.SITE, site):
        yield f'<p style="{_HINT};margin:0 0 8px">{_told(row.figures)}</p>'
    yield from _charts("groups", report.of(Level.GROUP, site), most_rows)
    yield from _charts("users", report.of(Level.USER, site), most_rows)


def _heading(name: str) -> str:
    return f'<h2 style="font-size:18px;margin:24px 0 4px">{escape(name)}</h2>'


def _charts(name: str, rows: Sequence[Row], most_rows: int | None) -> Iterator[str]:
    if rows:
        shown = rows[:most_rows]
        yield f'<h3 style="font-size:15px;margin:16px 0 4px">Core hours of {name}</h3>'
        yield _chart(shown)
        if len(shown) < len(rows):
            yield f'<p style="{_HINT};margin:4px 0">{and_more(rows, shown)}</p>'


def _chart(rows: Sequence[Row]) -> str:
    most = max(row.figures.core_hours for row in rows)
    return "".join([_bar(row, most) for row in rows])


def _bar(row: Row, most: Fraction) -> str:
    held = row.figures.core_hours
    width = max(round(100 * held / most), 1) if held > 0 else 0  # the smallest use is seen, too
    name = _pair(escape(label(row).strip()), number(held))
    told = f'<tr><td colspan="2" style="{_HINT}">{_told(row.figures)}</td></tr>'
    return f"<table {_TABLE}>{name}</table>{_strip(width)}<table {_TABLE}>{told}</table>"


def _strip(width: int) -> str:
    cell = '<td width="{}%" bgcolor="{}" style="height:8px;line-height:8px;font-size:0">&nbsp;</td>'
    cells = [cell.format(part, colour) for part, colour in ((width, _HELD), (100 - width, _EMPTY)) if part]
    return f"<table {_TABLE}><tr>{''.join(cells)}</tr></table>"


def _told(figures: Figures) -> str:
    told = [f"{figures.jobs:,} job" + ("" if figures.jobs == 1 else "s")]
    told += [] if figures.cpu_efficiency is None else [f"CPU {percent(figures.cpu_efficiency)}"]
    told += [] if figures.memory_efficiency is None else [f"memory {percent(figures.memory_efficiency)}"]
    told += [f"{number(figures.gpu_hours)} GPU h"] if figures.gpu_hours else []
    told += [f"{number(figures.khs23h, 3)} kHS23h"] if figures.khs23h else []
    told += [] if figures.energy is None else [f"{number(figures.energy)} kWh"]
    told += [] if figures.co2 is None else [f"{number(figures.co2)} kg CO2"]
    return ", ".join(told)
