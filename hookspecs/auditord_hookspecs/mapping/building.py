"""The site, labels and components of a job, by the rules from its row: columns, their texts, conditions on them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from itertools import chain
from typing import Final, TypeAlias

from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.mapping.documents import parse_labels
from auditord_hookspecs.mapping.quantities import (
    is_missing,
    parse_duration,
    parse_energy,
    parse_instant,
    parse_number,
    parse_size,
    sub_value,
)
from auditord_hookspecs.mapping.rules import (
    PLACEHOLDER,
    ComponentRule,
    Condition,
    KeyType,
    MetaRule,
    ScoreRule,
    SiteRule,
    ValueRule,
)
from auditord_hookspecs.records import MAX_AMOUNT, Component, Score, check_name

Row = Mapping[str, str]
"""The texts of one job by column name."""

AnyRule: TypeAlias = SiteRule | MetaRule | ComponentRule | ScoreRule


def columns(sites: Iterable[SiteRule], meta: Iterable[MetaRule], components: Iterable[ComponentRule]) -> list[str]:
    """The names of all columns that the rules look at, each once, so that a source is asked for these and no others."""
    scored: Iterable[AnyRule] = chain.from_iterable((rule, *rule.scores) for rule in components)
    rules: Iterable[AnyRule] = chain(sites, meta, scored)
    return list(dict.fromkeys(key for rule in rules for key in _keys(rule) if key is not None))


def _keys(rule: AnyRule) -> Iterable[str | None]:
    template = rule.template if isinstance(rule, MetaRule) else None
    return (rule.key, *PLACEHOLDER.findall(template or ""), *(condition.key for condition in rule.only_if))


def holds(conditions: Sequence[Condition], row: Row) -> bool:
    """Tell if all conditions are met."""
    if not conditions:  # as for most rules
        return True
    return all(condition.matches.search(row.get(condition.key, "")) is not None for condition in conditions)


def read_text(rule: ValueRule, row: Row) -> str:
    """The text that a rule finds in the row; empty if nothing.

    Raises:
        InvalidRecord: a list of pairs cannot be read.
    """
    template = rule.template if isinstance(rule, MetaRule) else None
    if template is not None:
        return _filled(template, row)
    text = row.get(rule.key or "", "")
    return cut_out(rule, sub_value(text, rule.sub_key) if rule.sub_key else text)


def cut_out(rule: ValueRule | ScoreRule | SiteRule, text: str) -> str:
    """The part of the text that ``matches`` finds: its first group, or all of it; without ``matches`` the text."""
    if rule.matches is None:
        return text
    found = rule.matches.search(text)
    if found is None:
        return ""
    return (found[1] or "") if found.re.groups else found[0]


def describe_source(rule: ValueRule) -> str:
    """The place where a rule looks, for messages: ``AllocTRES[gres/gpu]``."""
    template = rule.template if isinstance(rule, MetaRule) else None
    return f"{rule.key or template}" + (f"[{rule.sub_key}]" if rule.sub_key else "")


def _filled(template: str, row: Row) -> str:
    if not all(row.get(key) for key in PLACEHOLDER.findall(template)):
        return ""
    return PLACEHOLDER.sub(lambda match: row[match[1]], template)


_MEBIBYTE = 1_024**2


_PARSERS: Final[Mapping[KeyType, Callable[[str], Decimal]]] = {
    KeyType.INTEGER: parse_number,
    KeyType.INTEGER_MEGA: lambda text: parse_size(text) / _MEBIBYTE,
    KeyType.SIZE: parse_size,
    KeyType.TIME: parse_duration,
    KeyType.ENERGY: parse_energy,
}


def read_number(rule: ValueRule, text: str, factor: Decimal = Decimal(1)) -> int:
    """A text as the rule's numeric type, multiplied, then rounded once: half up, a time down.

    Raises:
        InvalidRecord: the text is not of the type.
    """
    number = _PARSERS[rule.key_type](text) * factor
    return int(number.to_integral_value(ROUND_DOWN if rule.key_type is KeyType.TIME else ROUND_HALF_UP))


def build_components(rules: Iterable[ComponentRule], row: Row) -> tuple[Component, ...]:
    """The components of a job, in the order of the rules.

    Raises:
        InvalidRecord: a mandatory amount is missing, or one cannot be read; the message names component and column.
    """
    built = (_component(rule, row) for rule in rules if holds(rule.only_if, row))
    return tuple(component for component in built if component is not None)


def _component(rule: ComponentRule, row: Row) -> Component | None:
    try:
        amount = rule.value if rule.value is not None else _amount(rule, row)
        return None if amount is None else Component(rule.name, amount, tuple(_scores(rule.scores, row)))
    except InvalidRecord as error:
        raise InvalidRecord(f"component {rule.name}: {describe_source(rule)}: {error}") from error


def _amount(rule: ComponentRule, row: Row) -> int | None:
    text = read_text(rule, row)
    if is_missing(text):
        if rule.default_value is None and not rule.optional and not (rule.key_allow_empty and not text):
            raise InvalidRecord(f"no value ({text!r}); give it a default_value or make it optional")
        return rule.default_value
    amount = read_number(rule, text, rule.factor)
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidRecord(f"{amount} is not between 0 and {MAX_AMOUNT}")
    return amount


def _scores(rules: Iterable[ScoreRule], row: Row) -> Iterable[Score]:
    for rule in rules:
        value = _score(rule, row) if holds(rule.only_if, row) else None
        if value is not None:  # a score that is not known is left out: 0 would be a statement
            yield Score(rule.name, value)


def _score(rule: ScoreRule, row: Row) -> float | None:
    if rule.key is None:
        return rule.value
    text = cut_out(rule, row.get(rule.key, ""))
    return None if is_missing(text) else float(parse_number(text))


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
