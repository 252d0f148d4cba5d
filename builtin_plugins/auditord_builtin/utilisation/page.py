"""A report as a page of HTML that mail programs show as it is meant, down to the width of a phone.

Bars are cells of tables with a width and a background: no picture to be blocked or attached, no style sheet to be
thrown away, no script. One column, no width in pixels but an upper limit, at most two cells side by side.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Final

import jinja2

from auditord_builtin.utilisation.config import Level
from auditord_builtin.utilisation.report import Report
from auditord_builtin.utilisation.tables import UNKNOWN, and_more, heading, label, name_of, number, percent
from auditord_builtin.utilisation.usage import Totals

_PAGES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def as_html(report: Report, most_rows: int | None = None) -> str:
    """The page; of all sites together and of each it lists so many groups and so many users."""
    return _PAGES.get_template("page.html").render(
        report=report,
        most_rows=most_rows,
        title=heading(report),
        totals=_named(report.total.totals, report.benchmark),
        group_totals=report.totals(Level.GROUP_TOTAL),
        user_totals=report.totals(Level.USER_TOTAL),
        Level=Level,
        UNKNOWN=UNKNOWN,
        and_more=and_more,
        in_words=_in_words,
        label=label,
        name_of=name_of,
        number=number,
        percentage=_percentage,
    )


def _named(totals: Totals, benchmark: str) -> Mapping[str, str]:
    return {
        "Jobs": f"{totals.jobs:,}",
        "Core hours": number(totals.core_hours),
        f"Benchmark hours (thousands, {benchmark})": number(totals.khs23h, 3),
        "CPU efficiency": percent(totals.cpu_efficiency),
        "Idle core hours": number(totals.idle_core_hours),
        "Memory efficiency": percent(totals.memory_efficiency),
        "Memory asked for and not used (GiB h)": number(totals.idle_memory),
        "GPU hours": number(totals.gpu_hours) if totals.gpu_hours else UNKNOWN,
        "Energy (kWh)": number(totals.energy),
        "CO2 (kg)": number(totals.co2),
    }


def _percentage(part: Fraction, most: Fraction) -> int:
    return max(round(100 * part / most), 1) if part > 0 else 0  # the smallest use is seen, too


def _in_words(totals: Totals) -> str:
    words = [f"{totals.jobs:,} job" + ("" if totals.jobs == 1 else "s")]
    words += [] if totals.cpu_efficiency is None else [f"CPU {percent(totals.cpu_efficiency)}"]
    words += [] if totals.memory_efficiency is None else [f"memory {percent(totals.memory_efficiency)}"]
    words += [f"{number(totals.gpu_hours)} GPU h"] if totals.gpu_hours else []
    words += [f"{number(totals.khs23h, 3)} kHS23h"] if totals.khs23h else []
    words += [] if totals.energy is None else [f"{number(totals.energy)} kWh"]
    words += [] if totals.co2 is None else [f"{number(totals.co2)} kg CO2"]
    return ", ".join(words)
