from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import SummaryRow, render, sync_message
from auditord_builtin.apel.questions import round_half_up
from auditord_builtin.apel.summaries import summaries
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.months import Month
from tests.builtin.apel.apel_receiver import Receiver

MARCH = Month(2024, 3)
pytestmark = pytest.mark.anyio


def configured(**changes: Any) -> ApelConfig:  # Any: as in a file; a__b changes b within a
    made: dict[str, Any] = {
        "site": {"sites_to_report": {"SITE-A": ["a", "a2"], "SITE-B": ["b"]}},
        "messaging": {"client_cert": "/c", "client_key": "/k"},
        "benchmarks": [{"type": "HEPscore23", "score": "HEPscore23"}, {"type": "hepspec", "score": "HS06"}],
        "summary_fields": {
            "mandatory": {
                "VO": {"type": "MetaField", "name": "voms", "regex": "(?<=/).*?(?=/|$)"},
                "SubmitHost": {"type": "MetaField", "name": "submit_host"},
            },
            "optional": {"NodeCount": {"type": "ConstantField", "value": 1}},
        },
    }
    for path, value in changes.items():
        *sections, last = path.split("__")
        inner = made
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return ApelConfig.model_validate(made)


def job(
    name: str,
    stop: datetime = datetime(2024, 3, 10, tzinfo=UTC),
    *,
    wall: float = 3600,
    cpu: int | None = 3000,
    cores: int | None = 1,
    **labels: str,
) -> Record:
    scores = tuple([Score(key, float(labels.pop(key))) for key in ("HEPscore23", "HS06") if key in labels])
    if not labels.pop("unscored", ""):
        scores = scores or (Score("HEPscore23", 15.1),)
    components = [Component("Cores", cores, scores)] if cores is not None else []
    components += [Component("TotalCPU", cpu, ())] if cpu is not None else []
    given = {"site_id": "a", "voms": "/atlas/Role=production", "submit_host": "ce1.example.org"} | labels
    meta: dict[str, tuple[str, ...]] = {key: (value,) for key, value in given.items() if value}
    return Record(name, stop - timedelta(seconds=wall), tuple(components), stop, meta)


async def rows(config: ApelConfig, *records: Record, site: str = "SITE-A") -> tuple[SummaryRow, ...]:
    answer = await summaries(config, FakePluginContext(stored=records), site, MARCH)
    assert answer.problems == ()
    return answer.rows


async def test_a_row_has_what_its_jobs_come_to() -> None:
    first, last = datetime(2024, 3, 1, 11, 46, 40, 500_000, UTC), datetime(2024, 3, 2, 11, 46, 40, tzinfo=UTC)
    made = [job("1", first, cpu=26_000, cores=8), job("2", last, cpu=30_000, cores=8)]
    (row,) = await rows(configured(), *made)
    (message,) = render([row])
    assert message.text == (
        "APEL-normalised-summary-message: v0.4\nSite: SITE-A\nMonth: 3\nYear: 2024\nVO: atlas\n"
        "SubmitHost: ce1.example.org\nInfrastructureDescription: AUDITORD-UNKNOWN-UNKNOWN\n"
        "NodeCount: 1\nProcessors: 8\nEarliestEndTime: 1709293600\n"
        "LatestEndTime: 1709380000\nWallDuration: 7200\nCpuDuration: 56000\n"
        "NormalisedWallDuration: {HEPscore23: 108720}\nNormalisedCpuDuration: {HEPscore23: 845600}\n"
        "NumberOfJobs: 2\n%%\n"
    )
    assert (message.records, message.site, message.month) == (1, "SITE-A", MARCH)


@pytest.mark.parametrize("raw", [("a:atlas", "b:Atlas"), ("a:Atlas", "b:atlas")])
async def test_the_spelling_of_a_row_does_not_depend_on_what_comes_first(raw: tuple[str, str]) -> None:
    vo = {"type": "MetaField", "name": "voms", "regex": "(?<=:).*"}
    (row,) = await rows(configured(summary_fields__mandatory__VO=vo), *[job(each, voms=each) for each in raw])
    assert (row.vo, row.jobs) == ("Atlas", 2)


async def test_batch_systems_of_one_key_are_named_together() -> None:
    named = [job("1", collector_type="slurm"), job("2", collector_type="htcondor"), job("3"), job("4", voms="/ops")]
    atlas, ops = await rows(configured(site__ce="ARC"), *named)
    assert (atlas.infrastructure_description, atlas.jobs) == ("AUDITORD-ARC-htcondor+slurm", 3)
    assert ops.infrastructure_description == "AUDITORD-ARC-UNKNOWN"
    (message,) = render([atlas, ops])
    assert validate(message.text) == []
    Receiver().take(message.text)


@pytest.mark.parametrize(
    ("changes", "described"),
    [
        ({"site__batch_system": "PBS"}, "AUDITORD-UNKNOWN-PBS"),
        ({"site__batch_system_meta_field": ["lrms", "collector_type"]}, "AUDITORD-UNKNOWN-slurm"),
        ({"site__ce": None}, None),
        ({"summary_fields__optional__InfrastructureDescription": {"type": "ConstantField", "value": "mine"}}, "mine"),
    ],
)
async def test_the_infrastructure_is_described_as_the_options_say(
    changes: dict[str, Any], described: str | None
) -> None:
    (row,) = await rows(configured(**changes), job("1", collector_type="slurm"))
    assert row.infrastructure_description == described
    (message,) = render([row])
    assert ("InfrastructureDescription" in message.text) is (described is not None)


async def test_jobs_without_length_count_unless_the_option_says_no() -> None:
    made = [job("1"), job("none", wall=0, cpu=0), job("short", wall=0.9, cpu=0)]
    (row,) = await rows(configured(), *made)
    assert row.jobs == 3
    (row,) = await rows(configured(site__zero_length_jobs=False), *made)
    assert row.jobs == 1


async def test_only_the_month_and_the_site_count() -> None:
    window = MARCH.window
    inside = [job("first", window.start), job("last", window.stop - timedelta(microseconds=1), site_id="a2")]
    outside = [job("late", window.stop), job("early", window.start - timedelta(microseconds=1)), job("b", site_id="b")]
    (row,) = await rows(configured(), *inside, *outside)
    assert row.jobs == 2
    (other,) = await rows(configured(), *inside, *outside, site="SITE-B")
    assert other.jobs == 1


async def test_a_record_with_both_labels_and_several_sites_counts_once() -> None:
    both = job("1", site="a", site_id="b")
    older = job("2", site_id="", site="a")
    several = Record(both.record_id + "x", both.start_time, both.components, both.stop_time, {"site_id": ("b", "a")})
    config = configured()
    assert [row.jobs for row in await rows(config, both, older, several)] == [1]
    assert sum(row.jobs for row in await rows(config, both, older, several, site="SITE-B")) == 2
    same = job("3", site="a", site_id="a")
    assert [row.jobs for row in await rows(config, same)] == [1]


async def test_mixed_benchmarks_make_a_row_each() -> None:
    made = [job("1", HEPscore23="15"), job("2", HS06="10"), job("3", HEPscore23="20", HS06="10"), job("4", HS06="0.5")]
    found = await rows(configured(), *made)
    assert [(row.benchmark, row.jobs, row.normalised_wall) for row in found] == [
        ("HEPscore23", 2, 3600 * 35),
        ("hepspec", 2, 3600 * 10 + 1800),
    ]


async def test_a_score_of_zero_is_one_that_is_not_known() -> None:
    (row,) = await rows(configured(), job("1", HEPscore23="0", HS06="10"))
    assert (row.benchmark, row.normalised_wall) == ("hepspec", 36_000)


async def test_halves_are_added_up_before_they_are_rounded() -> None:
    halves = [job(str(number), wall=1, cpu=1, HEPscore23="0.5") for number in range(1000)]
    (row,) = await rows(configured(), *halves)
    assert (row.normalised_wall, row.normalised_cpu) == (500, 500)


async def test_one_node_with_eleven_processors_is_not_eleven_nodes_with_one() -> None:
    nodes = {"type": "MetaField", "name": "nodes"}
    found = await rows(
        configured(summary_fields__optional__NodeCount=nodes),
        job("1", cores=11, nodes="1"),
        job("2", cores=1, nodes="11"),
    )
    assert [(row.node_count, row.processors) for row in found] == [(1, 11), (11, 1)]


async def test_what_apel_takes_for_one_key_is_one_row() -> None:
    vo = {"type": "MetaField", "name": "voms"}
    made = [job("1", voms="CaseVo"), job("2", voms="casevo"), job("3", voms="cásevo"), job("4", voms="casevo ")]
    for order in (made, made[::-1]):
        (row,) = await rows(configured(summary_fields__mandatory__VO=vo), *order)
        assert (row.vo, row.jobs) == ("CaseVo", 4)


async def test_milliseconds_are_divided_once_for_all() -> None:
    cpu = {"type": "ComponentField", "name": "TotalCPU", "divide_by": 1000}
    (row,) = await rows(
        configured(summary_fields__mandatory__CpuDuration=cpu), *[job(str(each), cpu=1_500) for each in range(3)]
    )
    assert row.cpu == 5  # 4.5, half up; each for itself: 6


async def test_a_description_splits_nothing() -> None:
    made = configured(summary_fields__optional__InfrastructureDescription={"type": "ConstantField", "value": "x" * 300})
    (row,) = await rows(made, job("1"))
    assert row.infrastructure_description == "x" * 100


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (job("bad", cores=None), "no score HEPscore23 or HS06"),
        (job("bad", unscored="1"), "no score HEPscore23 or HS06"),
        (job("bad", cpu=None), "no component TotalCPU"),
        (job("bad", HEPscore23="1e300"), "not from 0 to 10000000"),
        (job("bad", cores=2**31), "Processors is 2147483648, not from 0 to"),
    ],
)
async def test_a_bad_record_is_listed_and_stops_no_other(record: Record, reason: str) -> None:
    answer = await summaries(configured(), FakePluginContext(stored=[record, job("good")]), "SITE-A", MARCH)
    assert [row.jobs for row in answer.rows] == [1]
    (problem,) = answer.problems
    assert problem.jobs == 1
    assert reason in problem.reason


async def test_a_number_of_nodes_that_is_none_is_listed() -> None:
    made = configured(summary_fields__optional__NodeCount={"type": "MetaField", "name": "nodes"})
    answer = await summaries(
        made, FakePluginContext(stored=[job("1", nodes="²"), job("2", nodes="2")]), "SITE-A", MARCH
    )
    assert [row.node_count for row in answer.rows] == [2]
    assert "not a whole number" in answer.problems[0].reason


@pytest.mark.parametrize(
    ("layout", "lines"),
    [
        ("normalised-v0.3", ["ServiceLevelType: hepspec", "NormalisedWallDuration: 51120", "Infrastructure: grid"]),
        ("v0.4", ["ServiceLevel: {hepspec: 14.200}", "InfrastructureType: grid"]),
        ("v0.2", ["ServiceLevelType: hepspec", "ServiceLevel: 14.200"]),
    ],
)
async def test_the_other_layouts(layout: str, lines: list[str]) -> None:
    made = configured(
        summary_message=layout, summary_fields__optional__Infrastructure={"type": "ConstantField", "value": "grid"}
    )
    found = await rows(made, job("1", HS06="14.2"), job("2", HEPscore23="15.1"))
    (message,) = render([row for row in found if row.benchmark == "hepspec"])
    assert set(lines) <= set(message.text.splitlines())
    assert validate(message.text) == []


async def test_different_values_of_a_benchmark_are_rows_of_their_own_where_apel_normalises() -> None:
    made = await rows(configured(summary_message="v0.2"), job("1", HS06="14.2"), job("2", HS06="14.3"))
    assert [row.service_level for row in made] == [Decimal("14.200"), Decimal("14.300")]
    assert validate(render(made)[0].text) == []


async def test_a_withdrawn_row_replaces_the_one_that_it_withdraws() -> None:
    (row,) = await rows(configured(), job("1"))
    receiver = Receiver()
    (usage,), (withdrawal,) = render([row]), render([row.withdrawn()])
    for message in (usage, withdrawal):
        assert validate(message.text) == []
        receiver.take(message.text)
    assert (len(receiver.rows), receiver.total("NumberOfJobs"), receiver.total("WallDuration")) == (1, 0, 0)
    assert "EndTime" not in withdrawal.text


async def test_the_sync_message_counts_jobs_by_submit_host() -> None:
    made = [job("1", cores=1), job("2", cores=2), job("3", submit_host="CE2.example.org", voms="/cms")]
    (message,) = sync_message(await rows(configured(), *made))
    assert message.text == (
        "APEL-sync-message: v0.1\n"
        "Site: SITE-A\nSubmitHost: CE2.example.org\nNumberOfJobs: 1\nMonth: 3\nYear: 2024\n%%\n"
        "Site: SITE-A\nSubmitHost: ce1.example.org\nNumberOfJobs: 2\nMonth: 3\nYear: 2024\n%%\n"
    )
    assert validate(message.text) == []


@pytest.mark.parametrize(("number", "rounded"), [("1/2", 1), ("3/2", 2), ("5/2", 3), ("2499/1000", 2), ("0", 0)])
def test_halves_go_up(number: str, rounded: int) -> None:
    assert round_half_up(Fraction(number)) == round_half_up(Fraction(number) * 3, 3) == rounded


async def test_jobs_without_the_normalised_component_are_left_out_whole() -> None:
    base = {"type": "NormalisedField", "base_value": {"type": "ComponentField", "name": "Busy"}}
    config = configured(summary_fields__mandatory__NormalisedWallDuration=base)
    busy = msgspec.structs.replace(job("2"), components=(*job("2").components, Component("Busy", 10, ())))
    made = await summaries(config, FakePluginContext(stored=[job("1"), busy]), "SITE-A", MARCH)
    assert [(row.jobs, row.wall, row.normalised_wall) for row in made.rows] == [(1, 3600, 151)]
    assert [(problem.reason, problem.jobs) for problem in made.problems] == [("no component Busy: left out", 1)]


async def test_optional_fields_of_people_are_in_a_row_of_their_own() -> None:
    optional = {
        "GlobalUserName": {"type": "MetaField", "name": "subject"},
        "VOGroup": {"type": "MetaField", "name": "group"},
        "VORole": {"type": "MetaField", "name": "role"},
    }
    config = configured(summary_fields__optional=optional)
    pilot = job("1", subject="/DC=org/CN=robot", group="/atlas", role="Role=pilot")
    user = job("2", subject="/DC=org/CN=alice", group="/atlas/de", role="Role=production")
    made = {(row.global_user_name, row.vo_group, row.vo_role) for row in await rows(config, pilot, user)}
    assert made == {
        ("/DC=org/CN=robot", "/atlas", "Role=pilot"),
        ("/DC=org/CN=alice", "/atlas/de", "Role=production"),
    }


async def test_records_are_not_asked_for_a_batch_system_that_is_written_down() -> None:
    named = [job("1", collector_type="slurm"), job("2", collector_type="htcondor")]
    for changes in ({"site__batch_system": "PBS"}, {"site__ce": None}):
        context = FakePluginContext(stored=named)
        await summaries(configured(**changes), context, "SITE-A", MARCH)
        assert all("collector_type" not in str(query.by) for query in context.summed), changes


@pytest.mark.parametrize("sound", [2, 50], ids=["a small row", "a row whose sums look sound"])
async def test_one_garbage_job_takes_no_sound_one_out_of_the_summary(sound: int) -> None:
    stored = [job(str(number), cpu=7_000 - number, cores=2) for number in range(sound)]
    stored.append(job("odd", datetime(2024, 3, 12, tzinfo=UTC), cpu=147_587, cores=2))
    answer = await summaries(configured(), FakePluginContext(stored=stored), "SITE-A", MARCH)
    [row] = answer.rows
    subject = "SITE-A 2024-03 atlas on ce1.example.org, 2 processors"
    end = "it ended at 2024-03-12T00:00:00Z"
    plausible = sum(7_000 - number for number in range(sound)) + 2 * 3_601
    assert (row.jobs, row.wall, row.cpu) == (sound + 1, 3_600 * (sound + 1), plausible)
    assert row.normalised_cpu == round_half_up(Fraction("15.1") * plausible)
    assert [str(problem) for problem in answer.problems] == [
        f"{subject}: 1 job has an implausible CPU time, 147587 s in 3600 s: reported with 7202 s; {end}"
    ]
    (message,) = sync_message(answer.counts)
    assert f"NumberOfJobs: {sound + 1}\n" in message.text


@pytest.mark.parametrize(
    ("fields", "amount"),
    [
        ({}, 10_803),
        ({"CpuDuration": {"type": "ComponentField", "name": "TotalCPU", "divide_by": 1000}}, 10_803_000),
        ({"Processors": {"type": "ConstantField", "value": 2}}, 10_803),
        ({"Processors": {"type": "MetaField", "name": "cpus"}}, 10_803),
    ],
)
async def test_more_than_half_again_of_what_processors_had_is_implausible(fields: dict[str, Any], amount: int) -> None:
    mandatory = {f"summary_fields__mandatory__{name}": field for name, field in fields.items()}
    for more, cpu in ((0, amount), (1_000, 7_202)):
        stored = [job("odd", cpu=amount + more, cores=2, cpus="2"), job("other", wall=0, cpu=0, cores=2, cpus="2")]
        answer = await summaries(configured(**mandatory), FakePluginContext(stored=stored[:1]), "SITE-A", MARCH)
        assert [row.cpu for row in answer.rows] == [cpu if more else 10_803]
        assert len(answer.problems) == (1 if more else 0)


async def test_a_cpu_time_beyond_all_columns_of_apel_is_reported_as_what_there_was() -> None:
    stored = [job("wrapped", cpu=18_446_744_073_709, cores=8), job("sound", cpu=5_000, cores=8)]
    stored.append(job("worse", cpu=2**63 - 1, cores=8, voms="/cms"))
    answer = await summaries(configured(), FakePluginContext(stored=stored), "SITE-A", MARCH)
    assert [(row.vo, row.jobs, row.cpu) for row in answer.rows] == [("atlas", 2, 5_000 + 28_808), ("cms", 1, 28_808)]
    assert not answer.held


async def test_the_sync_message_counts_jobs_that_are_left_out_too() -> None:
    stored = [job("1"), job("2", unscored="yes"), job("3", unscored="yes", submit_host="ce2.example.org")]
    answer = await summaries(configured(), FakePluginContext(stored=stored), "SITE-A", MARCH)
    (message,) = sync_message(answer.counts)
    assert "SubmitHost: ce1.example.org\nNumberOfJobs: 2\n" in message.text
    assert "SubmitHost: ce2.example.org\nNumberOfJobs: 1\n" in message.text
