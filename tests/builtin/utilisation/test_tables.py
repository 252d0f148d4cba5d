"""Reports as readers see them."""

import csv
import io
import json
import re
from fractions import Fraction
from html.parser import HTMLParser
from typing import Any

import pytest

from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.periods import parse_period
from auditord_builtin.utilisation.report import Report, as_csv, as_html, as_json, as_text, number, report_on
from auditord_builtin.utilisation.usage import Estimator, Question
from auditord_hookspecs import Record
from tests.summed_records import aggregate_records
from tests.utilisation_jobs import job, mixed_jobs

PERIOD = parse_period("2026-01")
HOSTILE = '<script>alert("1")</script>&\n=cmd|\u202e'


def made(records: list[Record], **options: Any) -> Report:  # Any: of the configuration
    config = UtilisationConfig.model_validate(options)
    question = Question(config, Estimator(config.energy))
    return report_on(question.usages(aggregate_records(records, question.query(PERIOD))), config, PERIOD)


def rows(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(report), newline="")))


def test_csv_has_all_levels_with_full_precision_and_nothing_for_the_unknown() -> None:
    table = rows(made(list(mixed_jobs()), energy={"watt_per_core": 10}))
    assert [row["level"] for row in table].count("total") == 1
    sites = {row["site"]: row for row in table if row["level"] == "site"}
    assert sites["A"]["memory_efficiency"] == ""
    assert sites["B"]["memory_efficiency"] == "0.25"
    assert sites["A"]["khs23h"] == repr(float(Fraction(184, 10) * (2 * 8 * 39_964 + 2 * 9_259) / 3600 / 1000))
    assert sites["A"]["co2_kg"] == ""
    users = [row for row in table if row["level"] == "user"]
    assert sum(int(row["jobs"]) for row in users) == int(table[0]["jobs"])
    assert {row["period"] for row in table} == {"2026-01"}


def test_a_score_of_zero_is_one_that_is_not_known() -> None:
    """AUDITOR's collector for HTCondor writes it where no score fits."""
    report = made([job("a", {"Cores": 8}, score=0.0), job("b", {"Cores": 1}, score=10.0)], levels=[])
    assert report.total.totals.khs23h == Fraction(10, 1000)
    assert report.total.totals.unscored_core_hours == 8
    assert "8.0 of 9.0 core hours have no HEPscore23 score and are not in the benchmark hours." in report.notes
    assert made([job("a", {"Cores": 8}, score=0.0)], levels=[]).total.totals.khs23h is None


def test_core_hours_of_jobs_without_cores_are_unknown_and_not_zero() -> None:
    report = made([job("a", {"TotalCPU": 5}, site="A"), job("b", {"GPU": 1}, site="A")], energy={"watt_per_core": 10})
    [total, *_] = rows(report)
    unknown = ("core_hours", "khs23h", "energy_kwh", "co2_kg", "idle_core_hours", "cpu_efficiency")
    assert {total[name] for name in unknown} == {""}
    assert total["jobs_without_cores"] == "2"
    assert json.loads(as_json(report))["rows"][0]["core_hours"] is None
    assert as_text(report).splitlines()[3].split() == ["all", "2", "-", "-", "-", "-", "1.0", "-", "-", "-", "-"]
    assert "2 of 2 jobs have no cores: their core hours are unknown and left out." in report.notes
    assert "0.0" not in as_html(report)


def test_jobs_without_cores_are_named_beside_the_core_hours_of_the_others() -> None:
    of_cores = [job("a", {"Cores": 2}, group="g"), job("b", {"CoreSeconds": 3_600}, group="h")]
    report = made([*of_cores, job("c", {}, group="i")], levels=["group"])
    assert report.total.totals.core_hours == 3
    assert [row["core_hours"] for row in rows(report)] == ["3.0", "2.0", "1.0", ""], "the unknown come last"
    assert "1 of 3 jobs has no cores: its core hours are unknown and left out." in report.notes
    assert "core hours are unknown" in as_html(report)


def test_an_idle_month_has_no_core_hours_and_that_is_known() -> None:
    totals = made([]).total.totals
    assert (totals.jobs, totals.core_hours, totals.jobs_without_cores) == (0, Fraction(0), 0)


def test_json_says_the_same_and_what_is_left_out() -> None:
    report = made(list(mixed_jobs()), levels=["site"], energy={"sites": {"B": {"watt_per_core": 10}}})
    document = json.loads(as_json(report))
    assert [row["level"] for row in document["rows"]] == ["total", "site", "site"]
    assert document["rows"][0]["energy_kwh"] > 0
    notes = " ".join(document["notes"])
    assert "have no HEPscore23 score" in notes
    assert "belong to jobs without CPU time" in notes
    assert "are not in the energy" in notes
    assert "jobs have no user" in notes
    assert "Possible savings: " in notes


def test_milliseconds_that_were_taken_for_seconds_are_noticed() -> None:
    report = made([job("a", {"Cores": 1, "TotalCPU": 3_000_000})])
    assert any("components.cpu_time_unit: ms" in note for note in report.notes)


def test_the_largest_come_first_and_a_long_list_is_cut() -> None:
    many = [job(f"j{at}", {"Cores": at}, site_id="A", group_id="g", user_id=f"u{at}") for at in range(1, 30)]
    report = made(many)
    lines = as_text(report, most_rows=3).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("    u")] == ["u29", "u28", "u27"]
    assert "and 26 more" in as_html(report, most_rows=3)
    assert "\n    and 26 more\n" in as_text(report, most_rows=3)
    assert as_text(report).count("(g)") == 29


def sited(*whose: tuple[str, str, str, int]) -> Report:
    """A report on one job for each site, group and user, with so many cores."""
    return made(
        [
            job(f"j{at}", {"Cores": cores}, score=10.0, site_id=site, group_id=group, user_id=user)
            for at, (site, group, user, cores) in enumerate(whose)
        ],
        energy={"watt_per_core": 1_000, "co2_per_kwh": 2},
    )


SPREAD = (
    ("A", "physics", "ann", 1),
    ("A", "biology", "ann", 2),
    ("B", "physics", "ann", 4),
    ("B", "physics", "bob", 8),
)


def test_groups_are_added_up_over_sites_and_users_over_groups() -> None:
    table = {(row["level"], row["site"], row["group"], row["user"]): row for row in rows(sited(*SPREAD))}
    assert table["group_total", "", "physics", ""]["core_hours"] == "13.0"
    assert table["group_total", "", "biology", ""]["core_hours"] == "2.0"
    assert table["user_total", "", "", "ann"]["jobs"] == "3"
    assert table["user_total", "", "", "bob"]["core_hours"] == "8.0"
    lines = [
        line.split("  ")[0] if line[:1] != " " else line[:26].rstrip() for line in as_text(sited(*SPREAD)).splitlines()
    ]
    assert lines[3:8] == [
        "all",
        "  physics (all sites)",
        "  biology (all sites)",
        "    bob (all groups)",
        "    ann (all groups)",
    ]
    page = as_html(sited(*SPREAD))
    assert (
        page.index("All sites") < page.index("physics (all sites)") < page.index("ann (all groups)") < page.index(">B<")
    )


def test_totals_that_would_repeat_the_rows_of_the_one_site_are_left_out_of_tables() -> None:
    one = sited(("A", "physics", "ann", 1), ("A", "biology", "bob", 2))
    assert "(all" not in as_text(one)
    assert "All sites" not in as_html(one)
    assert "user_total" in as_csv(one)
    both = sited(("A", "physics", "ann", 1), ("A", "biology", "ann", 2))
    assert "ann (all groups)" in as_text(both)
    assert "(all sites)" not in as_text(both)


def test_a_page_tells_benchmark_hours_and_co2_of_each_group() -> None:
    page = as_html(sited(("A", "physics", "ann", 1), ("A", "biology", "bob", 50)))
    assert "1 job, 0.500 kHS23h, 50.0 kWh, 100.0 kg CO2" in page
    assert page.count("1 job, 0.010 kHS23h, 1.0 kWh, 2.0 kg CO2") == 2, "of the group and of its user"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(Fraction(1, 20), "0.1"), (Fraction(5, 4), "1.3"), (Fraction(10**9, 3), "333,333,333.3"), (None, "-")],
)
def test_figures_are_rounded_half_up(value: Fraction | None, shown: str) -> None:
    assert number(value) == shown


class Tags(HTMLParser):
    """Keeps what a mail program would have to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells = 0
        self.most_cells = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.cells = 0
        if tag == "td":
            self.cells += 1
            self.most_cells = max(self.cells, self.most_cells)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawn(report: Report) -> Tags:
    tags = Tags()
    tags.feed(as_html(report))
    assert tags.open == []
    return tags


def test_a_page_fits_a_phone_and_needs_nothing_from_elsewhere() -> None:
    report = made(list(mixed_jobs()), energy={"watt_per_core": 10, "co2_per_kwh": 1})
    tags = drawn(report)
    assert {tag for tag, _ in tags.tags}.isdisjoint({"img", "script", "style", "link", "svg"})
    assert tags.most_cells == 2
    for _, attributes in tags.tags:
        assert (attributes.get("width") or "100%").endswith("%")
        style = attributes.get("style") or ""
        assert not re.search(r"(?<!max-)width:\s*\d+px", style)
    assert 'content="width=device-width, initial-scale=1"' in as_html(report)
    # What cannot be broken is shorter than the 30 characters that a phone of 320 points shows of it.
    assert max(map(len, re.findall(r'nowrap">([^<]*)<', as_html(report)))) < 30


def test_bars_are_as_long_as_figures_are_large() -> None:
    records = [job(f"j{n}", {"Cores": n}, site_id="A", group_id=f"g{n}") for n in (1_000, 500, 4)]
    tags = drawn(made([*records, job("none", {}, site_id="A", group_id="g0")], levels=["group"]))
    held = [
        attributes["width"] for tag, attributes in tags.tags if tag == "td" and attributes.get("bgcolor") == "#2a6f97"
    ]
    assert held == ["100%", "50%", "1%"]


def test_hostile_names_stay_names() -> None:
    report = made([job("a", {"Cores": 1}, site_id=HOSTILE, group_id=HOSTILE, user_id=HOSTILE)])
    assert {tag for tag, _ in drawn(report).tags}.isdisjoint({"script"})
    assert [row["user"] for row in rows(report)][-1] == HOSTILE.replace("\n=", "\n'=")
    assert all(each.isprintable() for each in as_text(report).splitlines())


def test_a_month_without_jobs_has_a_report_without_figures() -> None:
    report = made([])
    assert rows(report)[0]["jobs"] == "0"
    assert drawn(report).tags
    assert "all" in as_text(report)
