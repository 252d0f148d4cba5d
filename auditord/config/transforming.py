"""The configured transforms as one function."""

from collections.abc import Iterable

from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord_hookspecs import InvalidRecord, Record, Transform


def configured_transform(configuration: Configuration, kinds: InstalledKinds) -> Transform | None:
    """What every record meets before it is kept, in the order of the configuration; None if that is nothing."""
    sections = [each for each in configuration.transforms.values() if each.enabled]
    transforms = [kinds.transforms[kind_of(section)].make(section) for section in sections]
    return _chain(transforms) if transforms else None


def _chain(transforms: Iterable[Transform]) -> Transform:
    each_in_turn = tuple(transforms)

    def transform(record: Record) -> Record:
        changed = record
        for each in each_in_turn:
            changed = each(changed)
        if (changed.record_id, changed.start_time, changed.stop_time) != (
            record.record_id,
            record.start_time,
            record.stop_time,
        ):
            raise InvalidRecord(
                f"a transform changed the id or the times of '{record.record_id}', which is not allowed"
            )
        return changed

    return transform
