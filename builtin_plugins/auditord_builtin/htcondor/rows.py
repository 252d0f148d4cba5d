"""From the text of an ad to the row of its columns."""

from collections.abc import Sequence

from auditord_builtin.htcondor.ads import Attributes, JobAd, is_name, parse_ad, reached
from auditord_builtin.htcondor.evaluation import Evaluator, Request
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import Row


def read_ad(evaluator: Evaluator, text: str, columns: Sequence[str]) -> JobAd:
    """The ad with its row; refused, and kept whole, if it is none or cannot be evaluated.

    Raises:
        AuditordError: nothing can be evaluated at all.
    """
    known: Row = {}
    try:
        attributes = parse_ad(text)
        known = literals(attributes, columns)
        return JobAd({**known, **_evaluated(evaluator, attributes, columns)})
    except InvalidRecord as error:
        return JobAd(known, text, str(error))


def literals(attributes: Attributes, columns: Sequence[str]) -> Row:
    """The texts of the columns that are attributes and literals."""
    found = {column: attributes[column.lower()].text for column in columns if column.lower() in attributes}
    return {column: text for column, text in found.items() if text}


def _evaluated(evaluator: Evaluator, attributes: Attributes, columns: Sequence[str]) -> Row:
    wanted = [column for column in columns if _is_open(attributes, column)]
    if not wanted:
        return {}
    needed = [attributes[name] for name in reached(attributes, wanted) if name in attributes]
    request = Request(
        columns=wanted,
        lines=[each.source for each in needed if each.form == "line"],
        values={each.name: each.source for each in needed if each.form == "value" and each.source is not None},
        expressions={each.name: each.source for each in needed if each.form == "expression"},
    )
    return {column: text for column, text in zip(wanted, evaluator.evaluate(request), strict=True) if text}


def _is_open(attributes: Attributes, column: str) -> bool:
    """Whether a column is an expression, or an attribute that is one."""
    if not is_name(column):
        return True
    attribute = attributes.get(column.lower())
    return attribute is not None and attribute.text is None
