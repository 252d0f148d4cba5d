"""The version of the contract between auditord and hook modules. The package's README has the deprecation policy.

A hook module declares the version that it was written for, as a literal that stays when auditord is updated::

    AUDITORD_CONTRACT = "1.0"
"""

import re
from typing import Final, NamedTuple


class Contract(NamedTuple):
    """A version of the contract.

    Args:
        major: increases when something is removed or changes meaning. Modules for another major version are refused.
        minor: increases when something is added. Modules for a later minor version are refused.
    """

    major: int
    minor: int

    @classmethod
    def parsed(cls, text: object) -> "Contract":
        """Parse a version such as ``1.0``.

        Raises:
            ValueError: the text is not a version. Numbers are refused, since 1.10 would be 1.1.
        """
        match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text, re.ASCII) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is not a version of the contract: write it like '{CONTRACT}'")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CONTRACT: Final = Contract(1, 1)
"""The version that this auditord implements."""

DECLARED_AS: Final = "AUDITORD_CONTRACT"
"""The name of the declaration in a hook module. A module without it counts as written for 1.0, the first version."""
