"""Recognising milliseconds by CPU times that no job can have used."""

from datetime import UTC, datetime, timedelta

from auditord.testing import make_record
from auditord_builtin.auditor.conversion import Conversion, MonthOfUnits, Units

JANUARY, FEBRUARY = datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 2, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
CONVERSION = Conversion(in_milliseconds=frozenset({"TotalCPU"}), until=FEBRUARY)


def test_each_month_is_classified_as_it_came_and_as_it_is_kept() -> None:
    units = Units(("Cores",))
    for start, seconds in [(JANUARY, 3_000_000), (JANUARY, 14_400_000), (JANUARY, 0), (FEBRUARY, 3_000)]:
        record = make_record(start=start, runtime=HOUR, cores=2, components={"TotalCPU": seconds, "Memory": 10**12})
        units.add(record, CONVERSION.convert(record))
    assert dict(units.suspicious()) == {
        "TotalCPU": [MonthOfUnits("2024-01", 3, 2, 0), MonthOfUnits("2024-02", 1, 0, 0)]
    }
    assert [(month.looked_wrong, month.looks_wrong) for month in dict(units.suspicious())["TotalCPU"]] == [
        (True, False),
        (False, False),
    ]


def test_twice_the_wall_time_on_all_cores_is_believed() -> None:
    units = Units(("Cores",))
    for seconds in (4 * 3_600, 4 * 3_600 + 1):
        record = make_record(cores=2, components={f"CPU-{seconds}": seconds})
        units.add(record, record)
    assert [name for name, _ in units.suspicious()] == ["CPU-14401"]


def test_what_says_nothing_is_left_out() -> None:
    units = Units(("Cores", "NumCpus"))
    huge = {"TotalCPU": 10**9}
    for record in (
        make_record(runtime=None, components=huge),
        make_record(runtime=timedelta(), components=huge),
        make_record(runtime=-HOUR, components=huge),
        make_record(cores=0, components=huge),
        make_record(components={"TotalCPU_milli": 10**9, "Memory": 10**9}),
    ):
        units.add(record, record)
    assert dict(units.suspicious()) == {}


def test_cores_may_have_another_name() -> None:
    units = Units(("NumCpus",))
    record = make_record(components={"NumCpus": 4, "RemoteUserCpu": 4 * 2 * 3_600 + 1})
    units.add(record, record)
    assert [name for name, _ in units.suspicious()] == ["RemoteUserCpu"]
