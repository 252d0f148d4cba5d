"""Site and labels from a row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.mapping.amounts import read_number
from auditord_hookspecs.mapping.documents import parse_labels
from auditord_hookspecs.mapping.quantities import is_missing, parse_instant
from auditord_hookspecs.mapping.reading import Row, cut_out, describe_source, holds, read_text
from auditord_hookspecs.mapping.rules import KeyType, MetaRule, SiteRule
from auditord_hookspecs.records import check_name


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a job.

    Args:
        meta: lists of texts by name.
        left_out: why labels are missing whose text was there, for the log.
    """

    meta: Mapping[str, tuple[str, ...]]
    left_out: Sequence[str] = field(default_factory=tuple[str, ...])


def problem_of(text: str) -> str | None:
    """Why the text can be no label; None if it can. Users write such texts: it must cost them no record."""
    try:
        check_name(text)
    except InvalidRecord as error:
        return str(error)
    return None


def build_owners(keys: Mapping[str, Sequence[str]], row: Row) -> Labels:
    """The labels that a collector sets itself: for each name the first of its columns that has a text.

    A text that can be no label is left out and not replaced by that of a later column.
    """
    columns = {name: next((key for key in wanted if row.get(key)), None) for name, wanted in keys.items()}
    found = {name: (key, problem_of(row[key])) for name, key in columns.items() if key is not None}
    meta = {name: (row[key],) for name, (key, problem) in found.items() if problem is None}
    return Labels(meta, [f"{name}: {key}: {problem}" for name, (key, problem) in found.items() if problem is not None])


def find_site(rules: Iterable[SiteRule], row: Row) -> str:
    """The name of the first rule that holds; one whose column holds no possible name is passed over.

    Raises:
        InvalidRecord: none does.
    """
    for rule in rules:
        name = rule.name or cut_out(rule, row.get(rule.key or "", ""))
        if name and problem_of(name) is None and holds(rule.only_if, row):
            return name
    raise InvalidRecord("no entry of sites matches this job; add one without only_if as the last")


def build_meta(rules: Sequence[MetaRule], row: Row, reserved: Collection[str] = ()) -> Labels:
    """The labels of a job.

    Args:
        rules: the rules; those of type ``Json`` fill only names that no other rule has.
        row: the texts of the job.
        reserved: names that the collector sets itself.

    Raises:
        InvalidRecord: a label that is not optional is missing or cannot be read.
    """
    taken = {*reserved, *(rule.name for rule in rules if rule.key_type is not KeyType.JSON)}
    labels = _Collected(taken)
    for rule in rules:
        if holds(rule.only_if, row) and (rule.append or rule.name not in labels.meta):
            labels.add(rule, row)
    return Labels(labels.meta, tuple(labels.left_out))


class _Collected:
    """The labels so far, and what was left out."""

    def __init__(self, taken: Collection[str]) -> None:
        self.meta: dict[str, tuple[str, ...]] = {}
        self.left_out: list[str] = []
        self._taken = taken

    def add(self, rule: MetaRule, row: Row) -> None:
        try:
            found = self._add_members(rule, row) if rule.key_type is KeyType.JSON else self._add_value(rule, row)
        except InvalidRecord as error:
            if not rule.optional:
                raise InvalidRecord(f"meta {rule.name}: {describe_source(rule)}: {error}") from error
            self.left_out.append(f"meta {rule.name}: {describe_source(rule)}: {error}")
            found = False
        if not found and rule.default_value is not None:
            self._append(rule.name, rule.default_value)
        elif not found and not rule.optional:
            raise InvalidRecord(f"meta {rule.name}: {describe_source(rule)}: no value; give it a default_value")

    def _add_value(self, rule: MetaRule, row: Row) -> bool:
        """Add the rule's label; False if it is missing and that is for the rule to decide."""
        text = rule.value or read_text(rule, row)
        value = text if rule.value else _written(rule, text)
        if value is None:
            return rule.key_allow_empty and not text
        check_name(value)
        self._append(rule.name, value)
        return True

    def _append(self, name: str, value: str) -> None:
        self.meta[name] = (*self.meta.get(name, ()), value)

    def _add_members(self, rule: MetaRule, row: Row) -> bool:
        text = read_text(rule, row)
        for name, value in parse_labels(text).items():
            problem = self._problem(name, value)
            if problem is not None:
                self.left_out.append(f"meta {rule.name}: {describe_source(rule)}: {name[:40]!r}: {problem}")
            elif name not in self.meta:
                self.meta[name] = (value,)
        return bool(text.strip()) or rule.key_allow_empty

    def _problem(self, name: str, value: str) -> str | None:
        taken = "the name is taken by the configuration" if name in self._taken else None
        return problem_of(name) or problem_of(value) or taken


def _written(rule: MetaRule, text: str) -> str | None:
    if rule.template is not None or rule.key_type is KeyType.STRING:
        return text or None
    if rule.key_type is KeyType.ID:
        return text.split("(", 1)[0] or None
    if is_missing(text):
        return None
    return _instant(parse_instant(text)) if rule.key_type is KeyType.DATE_TIME else str(read_number(rule, text))


def _instant(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds") + " UTC"
