"""The conversion of old records on their way in."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from auditord.testing import FakeCollectorContext, make_record
from auditord.testing.records import EPOCH
from auditord_builtin.auditor.conversion import AuditorImporter, Conversion, Rows
from auditord_builtin.auditor.kinds import AuditorOptions, open_importer
from auditord_builtin.auditor.parquet import ParquetSource
from auditord_hookspecs import ImportPage, ImportRow, InvalidRecord, Record
from auditord_hookspecs.wire import encode_record

HOUR = timedelta(hours=1)


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


def test_nothing_asked_nothing_done() -> None:
    record = make_record("a%2Fb", components={"TotalCPU": 2_733}, site_id="a%20b")
    assert Conversion().convert(record) is record


@pytest.mark.parametrize(("came", "kept"), [(2_733, 3), (4_577, 5), (3, 0), (500, 1), (499, 0), (0, 0)])
def test_milliseconds_become_whole_seconds_rounded_half_up(came: int, kept: int) -> None:
    record = make_record(components={"TotalCPU": came, "Memory": came})
    converted = Conversion(in_milliseconds=frozenset({"TotalCPU"})).convert(record)
    assert amounts(converted) == {"Cores": 1, "TotalCPU": kept, "Memory": came}
    assert (converted.record_id, converted.start_time, converted.stop_time) == (
        record.record_id,
        record.start_time,
        record.stop_time,
    )


def test_what_auditors_own_script_has_converted_is_not_converted_again() -> None:
    record = make_record(components={"TotalCPU": 3, "TotalCPU_milli": 2_733, "UserCPU": 2_733})
    converted = Conversion(in_milliseconds=frozenset({"TotalCPU", "UserCPU"})).convert(record)
    assert amounts(converted) == {"Cores": 1, "TotalCPU": 3, "TotalCPU_milli": 2_733, "UserCPU": 3}


@pytest.mark.parametrize(("runtime", "kept"), [(HOUR, 2_733), (HOUR - timedelta(microseconds=1), 3), (None, 3)])
def test_only_records_before_the_change_of_units_are_converted(runtime: timedelta | None, kept: int) -> None:
    record = make_record(components={"TotalCPU": 2_733}, runtime=runtime)
    conversion = Conversion(in_milliseconds=frozenset({"TotalCPU"}), until=EPOCH + HOUR)
    assert amounts(conversion.convert(record))["TotalCPU"] == kept


def test_ids_and_values_of_meta_are_decoded() -> None:
    record = make_record("record-example%2Fjob%20id%20%26%201", components={"a%20b": 1}, site_id="site%2F1", vo="100%")
    converted = Conversion(unquoted=True).convert(record)
    assert converted.record_id == "record-example/job id & 1"
    assert converted.meta == {"site_id": ("site/1",), "vo": ("100%",)}
    assert converted.components == record.components


@pytest.mark.parametrize(("name", "reason"), [("a%FFb", "not UTF-8"), ("%20", "blank"), ("a%00", "NUL")])
def test_what_is_no_name_once_decoded_is_said(name: str, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        Conversion(unquoted=True).convert(make_record(name))


def page_of(texts: Sequence[bytes], conversion: Conversion) -> ImportPage:
    importer = AuditorImporter(ParquetSource([]), conversion, ())
    return importer.page(Rows(texts, lambda place: f"row {place}", "", 1.0))


def test_bad_rows_of_a_page_harm_no_others() -> None:
    good = [make_record("a"), make_record("b%FF"), make_record("c")]
    texts = [*map(encode_record, good), b'{"record_id":"d","components":7}', b"garbage"]
    page = page_of(texts, Conversion(unquoted=True))
    assert (page.records[0], page.records[2]) == (good[0], good[2])
    assert [place for place, each in enumerate(page.records) if isinstance(each, InvalidRecord)] == [1, 3, 4]
    assert "$.components" in str(page.records[3])
    assert page.row(4) == ImportRow("row 4", b"garbage")
    assert page.runtimes == [3_600, 3_600, 3_600, None, None]


def test_a_page_has_the_runtimes_that_auditor_kept() -> None:
    text = encode_record(make_record("a"))
    other = text.replace(b'"runtime":3600', b'"runtime":7')
    without = text.replace(b',"runtime":3600', b"")
    assert page_of([text, other, without], Conversion()).runtimes == [3_600, 7, None]


def test_the_options_that_change_records_are_part_of_the_name() -> None:
    """A position of an import with other options is not used."""

    def name(**options: object) -> str:
        given = AuditorOptions.model_validate({"source": ("http://a:8000",), **options})
        return open_importer(given, FakeCollectorContext()).name

    assert name() == "the server http://a:8000"
    changed = name(unquote=True, milliseconds=("b", "a"), milliseconds_until=EPOCH)
    assert changed == ("the server http://a:8000; percent-decoded; milliseconds in a, b before 2026-01-01T00:00:00Z")
