"""The columns that rules look at, their texts in a row, and the conditions on them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from auditord_hookspecs.mapping.quantities import sub_value
from auditord_hookspecs.mapping.rules import (
    PLACEHOLDER,
    ComponentRule,
    Condition,
    MetaRule,
    ScoreRule,
    SiteRule,
    ValueRule,
)

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
