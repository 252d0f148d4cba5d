"""The text that a rule looks at in a row, and whether its conditions hold."""

from collections.abc import Mapping, Sequence

from auditord_hookspecs.mapping.quantities import sub_value
from auditord_hookspecs.mapping.rules import PLACEHOLDER, Condition, MetaRule, ScoreRule, SiteRule, ValueRule

Row = Mapping[str, str]
"""The texts of one job by column name."""


def holds(conditions: Sequence[Condition], row: Row) -> bool:
    """Tell if all conditions are met."""
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
