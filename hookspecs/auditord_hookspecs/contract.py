"""The version of the contract between auditord and hook modules; the package's README has the deprecation policy.

A hook module says for which version it was written by a literal, which stays when auditord is updated::

    AUDITORD_CONTRACT = "1.0"
"""

import re
from typing import Final, NamedTuple


class Contract(NamedTuple):
    """A version of the contract.

    Args:
        major: increases when something is removed or changes its meaning. Modules for another one are refused.
        minor: increases when something is added. Modules for a later one are refused.
    """

    major: int
    minor: int

    @classmethod
    def parsed(cls, text: object) -> "Contract":
        """Return the version that a text such as ``1.0`` says.

        Raises:
            ValueError: it is none; nor is a number, since 1.10 would be 1.1.
        """
        match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text, re.ASCII) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is no version of the contract: write it like '{CONTRACT}'")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CONTRACT: Final = Contract(1, 1)
"""The version that this auditord keeps."""

DECLARED_AS: Final = "AUDITORD_CONTRACT"
"""The name in a hook module; a module without it is taken to be written for 1.0, the first one."""
