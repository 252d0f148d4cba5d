"""The application of the rules to a job's row: its site, labels and components."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec

from auditord_hookspecs.batches import LeftOut
from auditord_hookspecs.errors import InvalidRecord
from auditord_hookspecs.mapping.quantities import (
    Row,
    cut_out,
    is_missing,
    parse_number,
    parse_time,
    read_amount,
    read_number,
    read_text,
)
from auditord_hookspecs.mapping.rules import (
    PLACEHOLDER,
    ComponentRule,
    Condition,
    KeyType,
    MetaRule,
    ScoreRule,
    SiteRule,
)
from auditord_hookspecs.records import Component, Score, check_name
from auditord_hookspecs.vocabulary import OUTCOME

_SINGLE_QUOTED = re.compile(r"(?<=[\s{\[,:])'(.*?)'(?=\s*[,:}\]])", re.DOTALL)
_MAX_SINGLE_QUOTED = 4_096
"""The limit in characters: the expression above takes quadratic time on hostile text, and users write comments."""

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_labels(text: str) -> Mapping[str, str]:
    """Return the members of a JSON object as texts, sorted by key.

    Strings are unchanged, numbers, booleans and nested values become JSON text, and nulls are left out. As in AUDITOR,
    one pair of enclosing double quotes is removed, and an object with single quotes is accepted (here also with
    apostrophes inside).

    Raises:
        InvalidRecord: the text is not such an object; the message has the position.
    """
    stripped = text.strip()
    if len(stripped) > 1 and stripped.startswith('"') and stripped.endswith('"'):
        stripped = stripped[1:-1].strip()
    texts: dict[str, str] = {}
    if not stripped:
        return texts
    if '"' not in stripped and len(stripped) > _MAX_SINGLE_QUOTED:
        raise InvalidRecord(f"{stripped[:60]!r}… is not JSON, and too long to be read as JSON with single quotes")
    try:
        if '"' not in stripped:
            quote = "\\'"
            stripped = _SINGLE_QUOTED.sub(
                lambda match: msgspec.json.encode(match[1].replace(quote, "'")).decode(), stripped
            )
        members = _decoder.decode(stripped)
        for key in sorted(members):
            raw = bytes(members[key])
            if raw.startswith(b'"'):
                texts[key] = msgspec.json.decode(raw, type=str)
            elif raw != b"null":
                value = msgspec.json.decode(raw)
                texts[key] = raw.decode() if isinstance(value, int | float) else msgspec.json.encode(value).decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecord(f"{text[:60]!r} is not a JSON object: {error}") from error
    return texts


# Python 3.11 looks up Enum members slowly, and every label of every job needs some.
_STRING, _ID, _DATE_TIME, _JSON = KeyType.STRING, KeyType.ID, KeyType.DATE_TIME, KeyType.JSON

AnyRule: TypeAlias = SiteRule | MetaRule | ComponentRule | ScoreRule


def columns(sites: Iterable[SiteRule], meta: Iterable[MetaRule], components: Iterable[ComponentRule]) -> list[str]:
    """Return the distinct names of all columns that the rules use, so that a collector requests only these."""
    scored: Iterable[AnyRule] = chain.from_iterable((rule, *rule.scores) for rule in components)
    found: dict[str | None, None] = {}
    for rule in (*sites, *meta, *scored):
        template = (rule.template if isinstance(rule, MetaRule) else None) or ""
        keys = (rule.key, *PLACEHOLDER.findall(template), *(condition.key for condition in rule.only_if))
        found.update(dict.fromkeys(keys))
    return [key for key in found if key is not None]


def holds(conditions: Sequence[Condition], row: Row) -> bool:
    """Return whether a row meets all conditions."""
    if not conditions:  # most rules have none
        return True
    return all(condition.matches.search(row.get(condition.key, "")) is not None for condition in conditions)


def build_components(
    rules: Iterable[ComponentRule],
    row: Row,
    left_out: list[LeftOut] | None = None,
    zero_is_missing: Collection[str] = (),
) -> tuple[Component, ...]:
    """Return the components of a job, in the order of the rules.

    Args:
        rules: the rules of the components.
        row: the job's texts.
        left_out: optional components and scores that cannot be read are added to this list. Without it, they make the
            job invalid.
        zero_is_missing: names of components whose zero means "not measured". If they are optional, a zero is left out.

    Raises:
        InvalidRecord: an amount that is not optional is missing or cannot be read; the message names the component and
            the column.
    """
    built: list[tuple[str, int, tuple[Score, ...]]] = []
    for rule in rules:
        try:
            if rule.only_if and not holds(rule.only_if, row):
                continue
            amount = read_amount(rule, row, zero_is_missing=rule.optional and rule.name in zero_is_missing)
            if amount is not None:
                scores = rule.known_scores
                built.append((rule.name, amount, _scores(rule, row, left_out) if scores is None else scores))
        except InvalidRecord as error:
            reason = f"component {rule.name}: {rule.source}: {error}"
            if left_out is None or not rule.optional:
                raise InvalidRecord(reason) from error
            left_out.append(LeftOut(rule.name, reason))
    return tuple([Component(*each) for each in built])


def _scores(component: ComponentRule, row: Row, left_out: list[LeftOut] | None) -> tuple[Score, ...]:
    """Return the known scores. An unknown score is left out, since 0 would be a value."""
    found: list[Score] = []
    for rule in component.scores:
        try:
            if not holds(rule.only_if, row):
                continue
            value = rule.value
            if rule.key is not None and not is_missing(text := cut_out(rule, row.get(rule.key, ""))):
                value = float(parse_number(text))
            found += [] if value is None else [Score(rule.name, value)]
        except InvalidRecord as error:
            if left_out is None:
                raise
            name = f"{component.name}.{rule.name}"
            left_out.append(LeftOut(name, f"score {name}: {rule.key}: {error}"))
    return tuple(found)


class Labels(msgspec.Struct, frozen=True):
    """The labels of a job.

    Args:
        meta: lists of texts by name.
        left_out: labels that are missing because their texts are invalid.
    """

    meta: Mapping[str, tuple[str, ...]]
    left_out: Sequence[LeftOut] = ()


def problem_of(text: str) -> str | None:
    """Return why a text is not a valid label, or None. Users write such texts, so a fault must not cost a record."""
    try:
        check_name(text)
    except InvalidRecord as error:
        return str(error)
    return None


def build_owners(keys: Mapping[str, Sequence[str]], row: Row) -> Labels:
    """Return the labels that a collector sets itself: for each name, the first of its columns with a text.

    A text that is not a valid label is left out, and later columns are not used instead.
    """
    meta: dict[str, tuple[str, ...]] = {}
    left_out: list[LeftOut] = []
    for name, wanted in keys.items():
        key = next(filter(row.get, wanted), None)
        if key is None:
            continue
        try:
            check_name(row[key])
        except InvalidRecord as error:
            left_out.append(LeftOut(name, f"{name}: {key}: {error}", label=True))
        else:
            meta[name] = (row[key],)
    return Labels(meta, left_out)


def find_site(rules: Iterable[SiteRule], row: Row) -> str:
    """Return the site by the first rule that applies. A rule whose column has no valid name is skipped.

    Raises:
        InvalidRecord: no rule applies.
    """
    for rule in rules:
        if rule.only_if and not holds(rule.only_if, row):
            continue
        if rule.name is not None:
            return rule.name
        name = cut_out(rule, row.get(rule.key or "", ""))
        if name and problem_of(name) is None:
            return name
    raise InvalidRecord("no entry of sites matches this job; add one without only_if as the last")


def build_meta(
    rules: Sequence[MetaRule], row: Row, reserved: Collection[str] = (), outcome: str | None = None
) -> Labels:
    """Return the labels of a job by the rules.

    Args:
        rules: the rules; those of type ``Json`` set only names that no other rule has.
        row: the job's texts.
        reserved: names that the collector sets itself.
        outcome: how the job ended, for the label ``outcome``, unless a rule has this name; None if that is unknown.

    Raises:
        InvalidRecord: a label that is not optional is missing or cannot be read.
    """
    labels: dict[str, tuple[str, ...]] = {}
    left_out: list[LeftOut] = []
    for rule in rules:
        try:
            if (rule.only_if and not holds(rule.only_if, row)) or (rule.name in labels and not rule.append):
                continue
            if rule.key_type is _JSON:
                taken = {*reserved, OUTCOME, *(other.name for other in rules if other.key_type is not _JSON)}
                found = _add_members(rule, row, taken, labels, left_out)
            else:
                found = _add_value(rule, row, labels)
        except InvalidRecord as error:
            text = f"meta {rule.name}: {rule.source}: {error}"
            if not rule.optional:
                raise InvalidRecord(text) from error
            left_out.append(LeftOut(rule.name, text, label=True))
            found = False
        if not found and rule.default_value is not None:
            _append(labels, rule.name, rule.default_value)
        elif not found and not rule.optional:
            raise InvalidRecord(f"meta {rule.name}: {rule.source}: no value; give it a default_value")
    if outcome is not None and all(rule.name != OUTCOME for rule in rules):
        labels[OUTCOME] = (outcome,)
    return Labels(labels, left_out)


def _add_value(rule: MetaRule, row: Row, labels: dict[str, tuple[str, ...]]) -> bool:
    """Add the rule's label. Return False if the value is missing, unless the rule allows that it is empty."""
    if (value := rule.value) is None:
        text = read_text(rule, row)
        if rule.key_type is _STRING or rule.template is not None:
            value = text
        elif rule.key_type is _ID:
            value = text.split("(", 1)[0]
        elif rule.key_type is _DATE_TIME:
            moment = parse_time(text)
            plain = moment and moment.replace(tzinfo=None)
            value = f"{plain.isoformat(sep=' ', timespec='seconds')} UTC" if plain else ""
        else:
            value = "" if is_missing(text) else str(read_number(rule, text))
        if not value:
            return rule.key_allow_empty and not text
        check_name(value)
    _append(labels, rule.name, value)
    return True


def _append(labels: dict[str, tuple[str, ...]], name: str, value: str) -> None:
    labels[name] = (*labels[name], value) if name in labels else (value,)


def _add_members(
    rule: MetaRule, row: Row, taken: Collection[str], labels: dict[str, tuple[str, ...]], left_out: list[LeftOut]
) -> bool:
    text = read_text(rule, row)
    for name, value in parse_labels(text).items():
        problem = "the name is taken by the configuration" if name in taken else None
        if problem := problem_of(name) or problem_of(value) or problem:
            reason = f"meta {rule.name}: {rule.source}: {name[:40]!r}: {problem}"
            left_out.append(LeftOut(rule.name, reason, label=True))
        elif name not in labels:
            labels[name] = (value,)
    return bool(text.strip()) or rule.key_allow_empty
