"""Amounts as Kubernetes writes them: ``500m``, ``1.5Gi``, ``2e3``.

The grammar is that of ``resource.Quantity``
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/): a signed decimal number with a
binary suffix, a decimal suffix or a decimal exponent. ``1E`` is an exa, ``1E3`` a thousand.
"""

import re
from decimal import Decimal
from typing import Final

from auditord_hookspecs import InvalidRecord

_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)"
)
_SUFFIXES: Final = {
    **{name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{name: Decimal(1000) ** -power for power, name in enumerate(("m", "u", "n"), start=1)},
}


def parse_quantity(text: str) -> Decimal:
    """The number that a quantity stands for.

    Raises:
        InvalidRecord: the text is no quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InvalidRecord(f"{text[:60]!r} is no quantity such as 500m, 1.5Gi or 2e3")
    scale = Decimal(10) ** int(match["exponent"] or 0) * _SUFFIXES.get(match["suffix"] or "", Decimal(1))
    return Decimal(match["number"]) * scale
