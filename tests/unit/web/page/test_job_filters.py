"""The query string of the list of records, and what its form sends."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest

from auditord.web.page.query_string import chips, form_of, pieces_of, read_filters, tidy
from auditord.web.record_query import InvalidQuery
from auditord_hookspecs.query import AllOf, TimeCompares


def test_times_of_the_form_are_those_of_the_pages_zone() -> None:
    zone = ZoneInfo("Europe/Berlin")
    asked = ["start_time%5Bgte%5D=2026-07-01T12:00", "stop_time[lt]=2026-07-01T12:00:00Z"]
    where = read_filters(asked, zone).query.where
    assert isinstance(where, AllOf)
    moments = [each.moment for each in where.conditions if isinstance(each, TimeCompares)]
    assert moments == [datetime(2026, 7, 1, 10, tzinfo=UTC), datetime(2026, 7, 1, 12, tzinfo=UTC)]
    shown: Any = form_of(asked, zone)["form"]  # Any: read by templates
    assert (shown["start_time[gte]"], shown["stop_time[lt]"]) == ("2026-07-01T12:00:00", "2026-07-01T14:00:00")


def test_a_filter_of_the_form_takes_the_place_of_the_same_one() -> None:
    query = "component[Cores][gte]=8&meta[VO][c][]=a&open=true&column="
    added = ["label_key=VO", "label_is=c", "label_value=b%26c", "component_name=Cores", "component_amount=16"]
    tidied = tidy([f"filters={quote(query)}", *added, "component_is=gte"])
    assert tidied == "meta[VO][c][]=a&open=true&meta[VO][c][]=b%26c&component[Cores][gte]=16"
    chip = chips(pieces_of(tidied))[1]
    assert (chip.subject, chip.operator, chip.value) == ("VO", "c", "b&c")
    assert chip.without == "meta[VO][c][]=a&open=true&component[Cores][gte]=16"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (["label_value=x"], "label_key"),
        (["label_key=x"], "label_value"),
        (["label_key=x", "label_is=like", "label_value=y"], "label_is"),
        (["component_amount=8"], "component_name"),
        (["component_name=Cores"], "component_amount"),
    ],
)
def test_half_a_filter_names_the_field_that_is_missing(fields: Sequence[str], name: str) -> None:
    with pytest.raises(InvalidQuery) as error:
        tidy(fields)
    assert error.value.parameter == name
