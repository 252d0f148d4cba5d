"""The columns that rules need, so that a collector asks its source for these and no others."""

from collections.abc import Iterable
from itertools import chain

from auditord_hookspecs.mapping.rules import PLACEHOLDER, ComponentRule, Condition, MetaRule, SiteRule


def columns(sites: Iterable[SiteRule], meta: Iterable[MetaRule], components: Iterable[ComponentRule]) -> list[str]:
    """The names of all columns that the rules look at, each once, in their order."""
    keys = chain(
        chain.from_iterable((rule.key, *_keys(rule.only_if)) for rule in sites),
        chain.from_iterable(_of_meta(rule) for rule in meta),
        chain.from_iterable(_of_component(rule) for rule in components),
    )
    return list(dict.fromkeys(key for key in keys if key is not None))


def _keys(conditions: Iterable[Condition]) -> Iterable[str]:
    return (condition.key for condition in conditions)


def _of_meta(rule: MetaRule) -> Iterable[str | None]:
    return (rule.key, *PLACEHOLDER.findall(rule.template or ""), *_keys(rule.only_if))


def _of_component(rule: ComponentRule) -> Iterable[str | None]:
    of_scores = chain.from_iterable((score.key, *_keys(score.only_if)) for score in rule.scores)
    return (rule.key, *_keys(rule.only_if), *of_scores)
