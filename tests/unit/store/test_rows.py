"""Records as rows: what the narrow columns say, and when they say that there is more."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from auditord.database.instants import from_micros, to_micros
from auditord.store import Duplicates, Provenance
from auditord.store.rows import make_pending, scores_text
from auditord_hookspecs import Component, InvalidRecord, Record, Score
from auditord_hookspecs.records import MAX_AMOUNT

START = datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
PROVENANCE = Provenance(START)


def columns(meta: dict[str, tuple[str, ...]] | None, *components: Component) -> tuple[object, ...]:
    pending = make_pending(Record("r", START, components, meta=meta), PROVENANCE, Duplicates.SAME_RUN)
    labels, amounts = pending.row.labels, pending.row.amounts
    narrow = (amounts.cores, amounts.memory, amounts.gpu, amounts.total_cpu)
    return (labels.site, labels.user_group, labels.user_name, pending.row.more, *narrow)


NO_AMOUNTS = (None, None, None, None)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (None, (None, None, None, None)),
        ({"other": ("x", "y")}, (None, None, None, None)),
        ({"site_id": ("s",), "group_id": ("g",), "user_id": ("u",)}, ("s", "g", "u", None)),
        ({"site_id": ("s",)}, ("s", None, None, None)),
        ({"site_id": ("s", "t")}, ("s", None, None, 1)),
        ({"site_id": ()}, (None, None, None, 1)),
        ({"site": ("s",)}, ("s", None, None, 1)),
        ({"site_id": ("s",), "site": ("t",)}, ("s", None, None, 1)),
        ({"group": ("g",), "user": ("u",)}, (None, "g", "u", 1)),
    ],
)
def test_dimensions(meta: dict[str, tuple[str, ...]] | None, expected: tuple[object, ...]) -> None:
    assert columns(meta) == (*expected, *NO_AMOUNTS)


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ([("Cores", 8), ("Memory", 1), ("GPU", 0), ("TotalCPU", 3), ("Other", 9)], (None, 8, 1, 0, 3)),
        ([("Cores", 8), ("Cores", 4)], (1, 12, None, None, None)),
        ([("Other", 8), ("Other", 4), ("GPU", 2)], (1, None, None, 2, None)),
        ([("Memory", MAX_AMOUNT), ("Memory", 1)], (1, None, MAX_AMOUNT, None, None)),
    ],
)
def test_amounts(components: list[tuple[str, int]], expected: tuple[object, ...]) -> None:
    made = [Component(name, amount, ()) for name, amount in components]
    assert columns(None, *made) == (None, None, None, *expected)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2024, 2, 29, 1, 2, 3, 123_457, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
)
def test_times_are_exact_to_the_microsecond(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment
    assert to_micros(moment) == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_what_cannot_be_encoded_is_an_invalid_record() -> None:
    record = Record("r", START, ())
    msgspec.structs.force_setattr(record, "meta", {"a": ("\ud800",)})  # around the checks, as only a mistake could
    with pytest.raises(InvalidRecord, match="cannot be stored"):
        make_pending(record, PROVENANCE, Duplicates.SAME_RUN)


def test_the_text_of_scores_names_components_that_have_some() -> None:
    cores = Component("Cores", 8, (Score("HEPSPEC06", 9.2), Score("hepscore23", 15.5)))
    gpu = Component("GPU", 1, (Score("FP32", 1e22),))
    assert scores_text((cores, Component("Memory", 1, ()), gpu)) == (
        '[["Cores",[{"name":"HEPSPEC06","value":9.2},{"name":"hepscore23","value":15.5}]],'
        '["GPU",[{"name":"FP32","value":1e22}]]]'
    )
    assert scores_text((Component("Memory", 1, ()),)) is None
