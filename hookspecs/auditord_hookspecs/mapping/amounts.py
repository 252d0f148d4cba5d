"""Components and their scores from a row."""

from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Final

from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.mapping import quantities
from auditord_hookspecs.mapping.reading import Row, cut_out, describe_source, holds, read_text
from auditord_hookspecs.mapping.rules import ComponentRule, KeyType, ScoreRule, ValueRule
from auditord_hookspecs.records import MAX_AMOUNT, Component, Score

_MEBIBYTE = 1_024**2


_PARSERS: Final[Mapping[KeyType, Callable[[str], Decimal]]] = {
    KeyType.INTEGER: quantities.parse_number,
    KeyType.INTEGER_MEGA: lambda text: quantities.parse_size(text) / _MEBIBYTE,
    KeyType.SIZE: quantities.parse_size,
    KeyType.TIME: quantities.parse_duration,
    KeyType.ENERGY: quantities.parse_energy,
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
    if quantities.is_missing(text):
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
    return None if quantities.is_missing(text) else float(quantities.parse_number(text))
