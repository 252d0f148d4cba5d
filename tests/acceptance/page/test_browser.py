"""The page in a real browser, at 100,000 records: on a desk, on a phone, in the dark, and for assistive technology.

Screenshots go to the folder that AUDITORD_SCREENSHOTS names, else to pytest's own.
"""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from auditord.cli.demo_run import make_up_records
from auditord.duplicates import Duplicates
from auditord.store import Provenance
from auditord.store.opening import open_store
from auditord.testing.daemon import running_daemon
from auditord.web.page.figures import Figures
from auditord_builtin.priority.running import PriorityState
from auditord_hookspecs import Record
from tests.chromium import SHAPES

SCREENSHOTS: Final = os.environ.get("AUDITORD_SCREENSHOTS")
RECORDS: Final = 100_000
PAGES: Final = {
    "overview": "/",
    "usage": "/usage?period=90-days",
    "efficiency": "/usage?measure=cpu-efficiency&by=user&period=90-days",
    "sizes": "/usage?by=size&bin=none",
    "two-labels": "/usage?by=group&then=user&period=last-quarter&component[Cores][gte]=2&meta[site_id][absent]=true",
    "heat": "/usage?chart=days&period=12-months",
    "ranking": "/usage?by=user&bin=none&measure=energy",
    "jobs": "/jobs",
    "filtered": "/jobs?component[Cores][gte]=2&meta[group_id][dnc][]=climate&sort_by[desc]=runtime&period=90-days",
    "record": "/jobs/aurora-demo-wrong",
    "operations": "/operations",
    "panels": "/panels",
    "manual": "/manual",
    "topic": "/manual/access",
}
PLUGINS: Final[dict[str, Any]] = {  # Any: as in a file
    "fair_share": {
        "kind": "priority",
        "run_at_start": True,
        "schedule": "0 0 1 1 *",
        "components": {"Cores": None},
        "group_mapping": {"climate": [], "materials": [], "particle-physics": []},
        "commands": ["true"],
    },
    "reports": {"kind": "utilisation", "schedule": "0 0 1 1 *"},
}
"""Plugins with panels: one that has run, one that has nothing to show yet."""


def many_records(now: datetime) -> Iterator[Record]:
    """The made-up site, again and again under other ids."""
    made = list(make_up_records(now))
    for number in range(RECORDS):
        turn, at = divmod(number, len(made))
        record = made[at]
        yield (
            record
            if not turn
            else Record(
                f"{record.record_id}-{turn}", record.start_time, record.components, record.stop_time, record.meta
            )
        )


async def fill(path: Path) -> None:
    now = datetime.now(UTC)
    records = list(many_records(now))
    async with open_store(f"sqlite://{path}", counted_keys=("group_id", "site_id", "user_id")) as store:
        for first in range(0, len(records), 5_000):
            some = records[first : first + 5_000]
            await store.add_all(some, Provenance(now - timedelta(days=1)), Duplicates.SAME_RUN, atomic=False)
        async with store.memory("fair_share", None) as memory:
            await memory.save(msgspec.to_builtins(earlier_priorities(now)), now)


def earlier_priorities(now: datetime) -> PriorityState:
    """The state of the plugin after a run on each of some days."""
    state = PriorityState()
    for day in range(40, 0, -1):
        groups = {"climate": 400 + day * day % 70, "materials": 330 - day, "particle-physics": 250 + 3 * day}
        state = state.add_run({name: Fraction(each) for name, each in groups.items()}, now - timedelta(days=day))
    return state


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "state").mkdir(mode=0o700)
    with start_blocking_portal() as portal:  # Playwright's loop runs in this thread
        portal.call(fill, folder / "state/records.db")
    with running_daemon(folder, {"ui": {"title": "A made-up site"}, "plugins": PLUGINS}) as daemon:
        with ThreadPoolExecutor() as threads:
            threads.submit(daemon.finish_run, "fair_share").result()  # in a loop of its own
        yield daemon.url


@pytest.mark.parametrize("shape", SHAPES)
def test_every_page_fits_its_screen_and_has_no_serious_barrier(
    browser: Any, url: str, shape: str, tmp_path: Path
) -> None:  # Any: an extra's
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    folder = Path(SCREENSHOTS or tmp_path)
    folder.mkdir(exist_ok=True)
    page = browser.new_context(bypass_csp=True, **SHAPES[shape]).new_page()
    for name, path in PAGES.items():
        page.goto(url + path)
        page.screenshot(path=str(folder / f"{name}-{shape}.png"), full_page=True)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= SHAPES[shape]["viewport"]["width"], (name, width)
        found = axe.run(page).response["violations"]
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found
            if each["impact"] in {"serious", "critical"}
        ]
        assert serious == [], name
    page.context.close()


def test_nothing_is_refused_and_nothing_comes_from_elsewhere(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_page()
    said, asked = list[str](), list[str]()

    def hear(message: Any) -> None:  # Any: see above
        said.append(str(message.text))

    def see(request: Any) -> None:  # Any: see above
        asked.append(str(request.url))

    page.on("console", hear)
    page.on("request", see)
    for path in PAGES.values():
        page.goto(url + path)
    assert said == []
    assert [each for each in asked if not each.startswith(url)] == []
    page.context.close()


def test_the_legend_hides_a_series_and_a_heading_sorts(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_page()
    page.goto(url + PAGES["usage"])
    fills = "marks => [...new Set(marks.map(mark => getComputedStyle(mark).fill))]"
    assert len(page.eval_on_selector_all(".series .mark", fills)) == 5  # groups
    page.click('[data-toggle="climate"]')
    assert page.locator('.series[data-series="climate"].off').count() > 0
    page.click("th .sorter >> nth=0")
    names = page.locator("table.sortable tbody th").all_inner_texts()
    assert names == sorted(names, reverse=True)
    page.context.close()


def test_a_sorted_table_keeps_the_sum_of_other_rows_last(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_page()
    page.goto(f"{url}/usage?by=user&bin=none&period=90-days")
    for heading in ("User", "Total", "Total"):
        page.click(f"th .sorter:text-is('{heading}')")
        names = page.locator("table.sortable tbody th").all_inner_texts()
        assert [" more" in name for name in names] == [False] * (len(names) - 1) + [True]
    totals = [float(each.replace(",", "")) for each in page.locator("table.sortable td.strong").all_inner_texts()[:-1]]
    assert totals == sorted(totals)
    page.context.close()


def test_dragging_over_a_chart_leads_to_the_days_that_were_chosen(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_page()
    page.goto(url + PAGES["usage"])
    chart = page.locator("svg.chart[data-days]")
    days = chart.get_attribute("data-days").split()
    box = chart.bounding_box()
    left, width, *_ = (float(each) * box["width"] / 960 for each in chart.get_attribute("data-plot").split())
    middle = box["y"] + box["height"] / 2

    def place(at: int) -> float:
        return float(box["x"] + left + width * (at + 0.5) / (len(days) - 1))

    page.mouse.move(place(3), middle)
    page.mouse.down()
    page.mouse.move(place(5), middle, steps=4)
    page.mouse.up()
    page.wait_for_url(f"**from={days[3]}**")
    last = datetime.fromisoformat(days[6]) - timedelta(days=1)
    assert f"to={last:%Y-%m-%d}" in page.url
    assert "period=" not in page.url
    page.click("text=Zoom out")
    page.wait_for_selector("svg.chart[data-days]")  # a page that takes long comes without its figures first
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chart_is_a_picture_for_programs_that_read_no_svg(browser: Any, url: str, scheme: str) -> None:  # Any: same
    page = browser.new_context(color_scheme=scheme).new_page()
    page.goto(url + PAGES["usage"])
    with page.expect_download() as download:
        page.click("[data-picture]")
    content = Path(download.value.path()).read_bytes()
    assert download.value.suggested_filename == "usage.png"
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert (width, height > 800) == (2 * 1_008, True)
    colours = page.evaluate(
        """async (content) => {
            const picture = await createImageBitmap(new Blob([Uint8Array.from(content)]));
            const canvas = new OffscreenCanvas(picture.width, picture.height);
            const context = canvas.getContext("2d");
            context.drawImage(picture, 0, 0);
            const { data } = context.getImageData(0, 0, picture.width, picture.height);
            const found = new Set();
            for (let at = 0; at < data.length; at += 4) found.add(data.slice(at, at + 3).join());
            return [data.slice(0, 3).join(), found.has("0,114,178"), found.has("230,159,0")];
        }""",
        list(content),
    )
    assert colours == ["255,255,255", True, True]  # white paper, and the first two groups, in the dark as well
    page.context.close()


@pytest.mark.parametrize("path", [PAGES["usage"], "/usage?period=12-months&measure=jobs", PAGES["ranking"], "/"])
def test_paper_has_every_column(browser: Any, url: str, path: str) -> None:  # Any: same
    page = browser.new_page(viewport={"width": 1_009, "height": 700})  # A4 across, less the margins
    page.goto(url + path)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1_009
    assert page.locator(".controls").is_hidden()
    for table in page.locator("table").all():
        box, headings = table.bounding_box(), table.locator("thead th").count()
        assert box["x"] + box["width"] <= 1_009
        assert headings == table.locator("thead th >> visible=true").count()
    page.context.close()


def test_the_page_works_without_scripts(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(url + PAGES["usage"])
    page.select_option("select[name=measure]", "jobs")
    page.click("button.primary")
    page.wait_for_url(re.compile("measure=jobs"))  # and until it is loaded
    assert page.locator("svg.chart .mark").count() > 10
    page.goto(url + PAGES["usage"])
    page.click("svg.chart > a >> nth=2")  # a label of the axis
    page.wait_for_url(re.compile("from="))
    assert page.locator("svg.chart .mark").count() > 0
    page.context.close()


def test_values_are_suggested_for_an_empty_field(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_context(**SHAPES["desktop"]).new_page()
    answers: list[int] = []

    def note(answer: Any) -> None:  # Any: see above
        if "/suggestions" in answer.url:
            answers.append(answer.status)

    page.on("response", note)
    page.goto(f"{url}/jobs")
    page.get_by_text("More filters").click()
    page.fill("[name=label_key]", "group_id")
    page.focus("[name=label_value]")
    page.locator("#values option[value=genomics]").wait_for(state="attached")
    page.locator("[name=label_value]").press_sequentially("LIMA")
    page.locator("#values option[value=genomics]").wait_for(state="detached")
    page.fill("[name=label_value]", "")  # offers all of them again
    page.locator("#values option[value=genomics]").wait_for(state="attached")
    assert set(answers) == {200}
    page.context.close()


@pytest.mark.parametrize("shape", ["desktop", "phone"])
def test_values_are_suggested_while_somebody_types(browser: Any, url: str, shape: str) -> None:  # Any: see above
    page = browser.new_context(**SHAPES[shape]).new_page()
    page.goto(f"{url}/jobs")
    offered = "[...document.querySelector('#{}').options].map((each) => each.value)"
    for summary in page.locator("summary").all():
        summary.click()
    assert "group_id" in page.evaluate(offered.format("labels"))
    page.fill("[name=label_key]", "group_id")
    page.locator("[name=label_value]").press_sequentially("LIMA")
    page.locator("#values option[value=climate]").wait_for(state="attached")
    assert page.evaluate(offered.format("values")) == ["climate"]
    page.context.close()


def test_a_name_in_a_filter_is_not_cut(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_context(**SHAPES["desktop"]).new_page()
    page.goto(f"{url}/jobs?group=machine-learning&user=somebody-with-a-long-name")
    cut = "fields => fields.filter(each => each.scrollWidth > each.clientWidth).map(each => each.name)"
    assert page.eval_on_selector_all(".controls input[type=text]", cut) == []
    page.context.close()


def test_a_list_leads_to_its_usage_without_scripts(browser: Any, url: str) -> None:  # Any: see above
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{url}/jobs?period=last-month")
    page.get_by_text("More filters").click()
    page.get_by_role("combobox", name="Group").fill("climate")
    page.fill("[name=component_name]", "Cores")
    page.get_by_label("Amount").fill("2")
    page.click("button.primary")
    page.wait_for_url(re.compile("component"))
    chips = page.locator(".chip").all_inner_texts()
    page.get_by_text("Show the usage").click()
    page.wait_for_url(re.compile("/usage"))
    assert page.locator(".chip").all_inner_texts() == chips
    assert [each[:-2] for each in chips] == ["Group is climate", "Cores ≥ 2"]
    assert page.locator("tbody tr").count() == 1
    page.context.close()


def test_the_notice_of_a_late_page_goes_without_scripts(
    browser: Any,  # Any: see above
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, report = threading.Event(), Figures.report

    async def wait(*args: Any) -> Any:  # Any: handed on
        assert await asyncio.to_thread(go_on.wait, 30)
        return await report(*args)

    monkeypatch.setattr(Figures, "report", wait)
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(url + PAGES["usage"], wait_until="commit")
    page.locator(".waiting").wait_for(state="visible")
    assert page.locator("select[name=measure]").is_visible()
    assert page.locator(".summary").count() == 0
    go_on.set()
    page.locator("footer").wait_for()
    assert page.locator(".summary").is_visible()
    assert page.locator(".waiting").is_hidden()
    page.context.close()
