"""The standard quantities, and that a record has one form of each."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_hookspecs import Component, InvalidRecord, Record
from auditord_hookspecs.vocabulary import HELD, QUANTITIES, TICKS, TOTALS, Form, share_of
from auditord_hookspecs.wire import decode_record

START = datetime(2026, 1, 1, tzinfo=UTC)


def record(*names: str) -> Record:
    return Record("job", START, tuple([Component(name, 1, ()) for name in names]), START + timedelta(hours=1))


@pytest.mark.parametrize(("held", "total"), TOTALS.items())
def test_a_record_has_one_form_of_each(held: str, total: str) -> None:
    record(held, *(other for other in TOTALS if other != held))
    record(total, total, *(other for other in HELD if other != total))
    for names in ((held, total), (total, "TotalCPU", held)):
        with pytest.raises(InvalidRecord, match=f"{total}.*the record also has {held}, and would count twice"):
            record(*names)
    body = (
        b'{"record_id":"job","components":[{"name":"%b","amount":1,"scores":[]},{"name":"%b","amount":1,"scores":[]}],'
        b'"start_time":"2026-01-01T00:00:00Z","stop_time":null,"meta":{}}'
    )
    with pytest.raises(InvalidRecord, match="would count twice"):
        decode_record(body % (held.encode(), total.encode()))


def test_totals_are_standard_quantities_too() -> None:
    assert {QUANTITIES[total].form for total in HELD} == {Form.TOTAL}
    assert {QUANTITIES[held].form for held in TOTALS} == {Form.HELD}


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**40), min_size=2).map(sorted), st.data())
def test_the_shares_of_consecutive_windows_are_the_total(total: int, cuts: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(cuts[0], cuts[-1]))
    stop = data.draw(st.integers(start, cuts[-1]))
    windows = [
        (first, end) for first, end in pairwise(cuts) if start < end and (stop > first or start == stop == first)
    ]
    if start < cuts[-1]:
        assert sum(share_of(total, start, stop, *window) for window in windows) == total * TICKS
