"""The consumption of accounts and users, from records."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord.testing import FakePluginContext, make_record
from auditord_builtin.waldur.config import round_amount
from auditord_builtin.waldur.usage import AccountUsage, BillingMonth, amount, convert_usage, month_usage, raw_usage
from auditord_hookspecs import Record, Window
from tests.waldur_settings import waldur_config

JANUARY: Final = BillingMonth(2024, 1, ZoneInfo("UTC"))
NEW_YEAR: Final = datetime(2024, 1, 1, tzinfo=UTC)
LATER: Final = datetime(2024, 3, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
CORE_HOURS: Final = {"cpu": {"unit_factor": 60}}


def job(
    number: int = 1,
    *,
    account: str = "physics",
    user: str = "alice",
    start: datetime = NEW_YEAR,
    runtime: timedelta | None = HOUR,
    cores: int = 1,
    memory: int = 1024,
    gpus: int = 0,
) -> Record:
    components = {"Memory": memory, **({"GPU": gpus} if gpus else {})}
    meta = {"account": account, **({"user_id": user} if user else {}), "site_id": "cluster"}
    return make_record(f"job-{number}", start=start, runtime=runtime, cores=cores, components=components, **meta)


WORKED: Final = (
    job(1, user="alice", cores=8, memory=4096, runtime=24 * HOUR),
    job(2, user="bob", cores=64, memory=131072, runtime=100 * HOUR),
)
WORKED_USAGE: Final = AccountUsage(
    total={"cpu": Decimal("6.59"), "mem": Decimal("12896.00")},
    users={
        "alice": {"cpu": Decimal("0.19"), "mem": Decimal("96.00")},
        "bob": {"cpu": Decimal("6.40"), "mem": Decimal("12800.00")},
    },
)


@pytest.mark.anyio
async def test_the_worked_example() -> None:
    figures = await month_usage(waldur_config(), FakePluginContext(stored=WORKED), JANUARY, as_of=LATER)
    assert figures == {"physics": WORKED_USAGE}


@pytest.mark.anyio
async def test_accounts_and_users_are_one_whatever_the_case() -> None:
    records = [
        job(1, account="Physics", user="ALICE"),
        job(2, account="physics", user="alice"),
        job(3, account=" PHYSICS", user="Alice "),
    ]
    config = waldur_config(backend_components=CORE_HOURS)
    figures = await month_usage(config, FakePluginContext(stored=records), JANUARY, as_of=LATER)
    assert figures == {"physics": AccountUsage({"cpu": Decimal(3)}, {"alice": {"cpu": Decimal(3)}})}


@pytest.mark.anyio
async def test_who_is_not_named_counts_in_the_total_alone() -> None:
    records = [job(1), job(2, user=""), make_record("nobody", start=NEW_YEAR, site_id="cluster")]
    config = waldur_config(backend_components=CORE_HOURS)
    context = FakePluginContext(stored=records)
    figures = await month_usage(config, context, JANUARY, as_of=LATER)
    assert figures == {"physics": AccountUsage({"cpu": Decimal(2)}, {"alice": {"cpu": Decimal(1)}})}
    raw = await raw_usage(config, context, JANUARY.window, as_of=LATER)
    assert raw[None][None]["cpu"] == 60, "a record without account is known to be one"


@pytest.mark.anyio
async def test_only_chosen_accounts_and_sites_count() -> None:
    elsewhere = make_record("else", start=NEW_YEAR, account="hpc_a", user_id="alice", site="other")
    older = make_record("older", start=NEW_YEAR, account="HPC_a", user_id="alice", site="cluster")
    records = [job(1, account="hpc_a"), job(2, account="test"), elsewhere, older]
    config = waldur_config(account_prefixes=["hpc_"], sites=["cluster"], backend_components=CORE_HOURS)
    figures = await month_usage(config, FakePluginContext(stored=records), JANUARY, as_of=LATER)
    assert {account: usage.total["cpu"] for account, usage in figures.items()} == {"hpc_a": Decimal(2)}
    only_new = waldur_config(site_meta="site_id", sites=["cluster"], backend_components=CORE_HOURS)
    figures = await month_usage(only_new, FakePluginContext(stored=records), JANUARY, as_of=LATER)
    assert set(figures) == {"hpc_a", "test"}
    assert figures["hpc_a"].total["cpu"] == 1


@pytest.mark.anyio
@pytest.mark.parametrize("zone", ["UTC", "Europe/Tallinn", "America/Los_Angeles", "Pacific/Kiritimati"])
async def test_a_job_over_the_end_of_a_month_is_split_there(zone: str) -> None:
    config = waldur_config(timezone=zone, backend_components={"cpu": {"unit_factor": "1/60"}})
    january = BillingMonth(2024, 1, ZoneInfo(zone))
    boundary = january.window.stop
    record = job(start=boundary - timedelta(seconds=90), runtime=timedelta(seconds=100))
    before, after = [
        (await month_usage(config, FakePluginContext(stored=[record]), month, as_of=LATER + 30 * 24 * HOUR))["physics"]
        for month in (january, january.next)
    ]
    assert (before.total["cpu"], after.total["cpu"]) == (Decimal(90), Decimal(10)), (
        "seconds: none is lost, none counts twice"
    )


@pytest.mark.anyio
async def test_a_running_job_counts_up_to_now_and_in_closed_months_whole() -> None:
    running = job(start=NEW_YEAR + 30 * 24 * HOUR, runtime=None)
    config, context = waldur_config(backend_components=CORE_HOURS), FakePluginContext(stored=[running])
    now = datetime(2024, 2, 1, 5, tzinfo=UTC)
    january = await month_usage(config, context, JANUARY, as_of=now)
    february = await month_usage(config, context, JANUARY.next, as_of=now)
    assert (january["physics"].total["cpu"], february["physics"].total["cpu"]) == (Decimal(24), Decimal(5))
    assert await month_usage(config, context, JANUARY.next.next, as_of=now) == {}, "a month to come"


@pytest.mark.anyio
async def test_gpus_of_all_types_and_of_one() -> None:
    typed = make_record(
        "typed", start=NEW_YEAR, components={"GPU_a100": 2, "GPU_h100": 1}, account="physics", user_id="alice"
    )
    config = waldur_config(
        backend_components={"gres/gpu": {"unit_factor": 60}, "gres/gpu:a100": {"unit_factor": 60}},
        recorded_as={"gres/gpu": {"component": ["GPU_a100", "GPU_h100"]}, "gres/gpu:a100": {"component": ["GPU_a100"]}},
    )
    figures = await month_usage(config, FakePluginContext(stored=[typed]), JANUARY, as_of=LATER)
    assert figures["physics"].total == {"gres/gpu": 3, "gres/gpu:a100": 2}
    plain = waldur_config(backend_components={"gres/gpu": {"unit_factor": 60}})
    figures = await month_usage(plain, FakePluginContext(stored=[job(gpus=4)]), JANUARY, as_of=LATER)
    assert figures["physics"].total == {"gres/gpu": 4}


@pytest.mark.anyio
async def test_memory_in_other_units() -> None:
    config = waldur_config(
        backend_components={"mem": {"unit_factor": 61440}},
        recorded_as={"mem": {"component": ["Memory"], "scale": "1/1048576"}},
    )
    record = job(memory=4096 * 2**20, runtime=24 * HOUR)
    figures = await month_usage(config, FakePluginContext(stored=[record]), JANUARY, as_of=LATER)
    assert figures["physics"].total == {"mem": Decimal(96)}


@pytest.mark.anyio
async def test_a_component_of_several_resources_leaves_the_others_their_factors() -> None:
    config = waldur_config(
        backend_components={
            "credits": {"target_components": {"cpu": {"factor": 60}, "gres/gpu": {"factor": 6}}},
            "mem": {"unit_factor": 61440},
        }
    )
    record = job(cores=8, gpus=1, memory=4096, runtime=24 * HOUR)
    figures = await month_usage(config, FakePluginContext(stored=[record]), JANUARY, as_of=LATER)
    assert figures["physics"].total == {"credits": 8 * 24 + 240, "mem": Decimal(96)}


@pytest.mark.anyio
async def test_each_figure_is_rounded_once_and_half_up() -> None:
    users = [job(n, user=f"user{n}", runtime=timedelta(minutes=299)) for n in range(3)]
    figures = await month_usage(waldur_config(), FakePluginContext(stored=users), JANUARY, as_of=LATER)
    assert [usage["cpu"] for usage in figures["physics"].users.values()] == [0, 0, 0]
    assert figures["physics"].total["cpu"] == Decimal("0.01"), "897 minutes, and not three times nothing"
    assert round_amount(Fraction(1, 200)) == Decimal("0.01")
    assert str(round_amount(Fraction(0))) == "0.00"


@given(st.integers(0, 10**24))
def test_rounding_is_that_of_decimals(thousandths: int) -> None:
    expected = Decimal(thousandths).scaleb(-3).quantize(Decimal("0.01"), ROUND_HALF_UP)
    assert round_amount(Fraction(thousandths, 1000)) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alice", "Bob", "bob", "carol", ""]),
            st.integers(-(40 * 86_400), 40 * 86_400),
            st.integers(0, 80 * 86_400) | st.none(),
            st.integers(0, 2**40),
        ),
        max_size=12,
    ),
    st.integers(0, 90 * 86_400_000_000),
)
@pytest.mark.anyio
async def test_the_total_is_the_sum_of_the_raw_figures_and_months_tile(
    jobs: list[tuple[str, int, int | None, int]], now: int
) -> None:
    records = [
        job(
            number,
            user=user,
            start=NEW_YEAR + timedelta(seconds=start),
            runtime=None if runtime is None else timedelta(seconds=runtime),
            memory=memory,
        )
        for number, (user, start, runtime, memory) in enumerate(jobs)
    ]
    config, context, as_of = waldur_config(), FakePluginContext(stored=records), NEW_YEAR + timedelta(microseconds=now)
    raw = await raw_usage(config, context, JANUARY.window, as_of=as_of)
    for account, usage in convert_usage(config, raw).items():
        for component, total in usage.total.items():
            assert total == round_amount(
                sum((amount(config, component, each) for each in raw[account].values()), Fraction())
            )
    months = [BillingMonth(2023, month, JANUARY.zone) for month in (11, 12)] + [JANUARY]
    months += [months[-1].next, months[-1].next.next, months[-1].next.next.next]
    parts = [await _memory(context, month.window, as_of) for month in months]
    assert sum(parts) == await _memory(context, Window(months[0].window.start, months[-1].window.stop), as_of)


async def _memory(context: FakePluginContext, window: Window, as_of: datetime) -> Fraction:
    raw = await raw_usage(waldur_config(), context, window, as_of=as_of)
    return sum((minutes["mem"] for users in raw.values() for minutes in users.values()), Fraction())
