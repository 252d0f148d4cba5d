"""Records whose id is taken at the destination."""

from datetime import timedelta

import msgspec
import pytest

from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_builtin.remote.delivery import Remedy, remedy, same_content
from auditord_hookspecs import Record

HOUR = timedelta(hours=1)
FULL = make_record(site_id="S")
OPEN = make_record(site_id="S", runtime=None)
LONGER = make_record(site_id="S", runtime=2 * HOUR)
OTHER = make_record(site_id="T")
LONGER_OTHER = make_record(site_id="T", runtime=2 * HOUR)
LATER = make_record(site_id="S", start=EPOCH + HOUR)
OPEN_LATER = make_record(site_id="S", start=EPOCH + HOUR, runtime=None)
OPEN_OTHER_LATER = make_record(site_id="T", start=EPOCH + HOUR, runtime=None)


@pytest.mark.parametrize(
    ("stored", "offered", "to_insert", "to_overwrite"),
    [
        (FULL, FULL, Remedy.NOTHING, Remedy.NOTHING),
        (FULL, LONGER, Remedy.NOTHING, Remedy.STOP),
        (FULL, OTHER, Remedy.NOTHING, Remedy.NONE),
        (FULL, OPEN, Remedy.NOTHING, Remedy.NOTHING),
        (FULL, LONGER_OTHER, Remedy.NOTHING, Remedy.STOP),
        (OPEN, FULL, Remedy.STOP, Remedy.STOP),
        (OPEN, OTHER, Remedy.STOP, Remedy.NONE),
        (OPEN, OPEN, Remedy.NOTHING, Remedy.NOTHING),
        (OPEN, OPEN_LATER, Remedy.NOTHING, Remedy.NOTHING),
        (OPEN, OPEN_OTHER_LATER, Remedy.OTHER_ID, Remedy.OTHER_ID),
        (OPEN, LATER, Remedy.OTHER_ID, Remedy.OTHER_ID),
        (FULL, LATER, Remedy.OTHER_ID, Remedy.OTHER_ID),
        (FULL, OPEN_LATER, Remedy.OTHER_ID, Remedy.OTHER_ID),
    ],
)
def test_remedies(stored: Record, offered: Record, to_insert: Remedy, to_overwrite: Remedy) -> None:
    assert remedy(stored, offered, overwrite=False) is to_insert
    assert remedy(stored, offered, overwrite=True) is to_overwrite


def test_who_made_a_record_is_no_content() -> None:
    made = msgspec.structs.replace(FULL, meta={**(FULL.meta or {}), "collector_type": ("slurm",)})
    assert same_content(made, FULL)
    assert same_content(msgspec.structs.replace(FULL, meta={}), msgspec.structs.replace(FULL, meta=None))
    assert not same_content(OTHER, FULL)
