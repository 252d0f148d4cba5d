"""The changes of a record that an operator asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import click
import msgspec

from auditord_hookspecs import Component, InvalidRecord, Record


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of a record.

    Args:
        meta: ``KEY=VALUE``, several of one key make a list; ``KEY=`` takes the key away.
        components: ``NAME=AMOUNT``; scores stay.
    """

    start_time: datetime | None = None
    stop_time: datetime | None = None
    meta: Sequence[str] = ()
    components: Sequence[str] = ()

    def __bool__(self) -> bool:
        """True if anything is to be different."""
        return bool(self.start_time or self.stop_time or self.meta or self.components)

    def apply(self, record: Record) -> Record:
        """The record with the changes.

        Raises:
            InvalidRecord: it would break a rule.
            BadParameter: an option is not of its form.
        """
        return msgspec.structs.replace(
            record,
            start_time=self.start_time or record.start_time,
            stop_time=self.stop_time or record.stop_time,
            meta=_merged(record.meta, self.meta),
            components=_with_amounts(record.components, self.components),
        )


def _merged(meta: Mapping[str, tuple[str, ...]] | None, changes: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    values: dict[str, list[str]] = {}
    for text in changes:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--meta")
        values.setdefault(key, []).extend([value] if value else [])
    merged = {**(meta or {}), **{key: tuple(found) for key, found in values.items()}}
    return {key: found for key, found in merged.items() if found or key not in values} or None


def _with_amounts(components: Sequence[Component], changes: Sequence[str]) -> tuple[Component, ...]:
    changed = list(components)
    for text in changes:
        name, equals, amount = text.rpartition("=")
        if not (name and equals and amount.isascii() and amount.isdigit()):
            raise click.BadParameter(f"'{text}' is not NAME=AMOUNT, a whole number", param_hint="--component")
        _set_amount(changed, name, int(amount))
    return tuple(changed)


def _set_amount(components: list[Component], name: str, amount: int) -> None:
    places = [place for place, component in enumerate(components) if component.name == name]
    if len(places) > 1:
        raise InvalidRecord(f"the record has several components {name!r}: write it whole, with --from-file")
    if places:
        components[places[0]] = msgspec.structs.replace(components[places[0]], amount=amount)
    else:
        components.append(Component(name, amount, ()))
