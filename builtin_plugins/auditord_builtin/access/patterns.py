"""What names are compared with: literal texts in which ``*`` stands for anything.

Not regular expressions: in ``ce.example.org`` each dot would let another host in.
"""

import re
from functools import lru_cache


def fits(pattern: str, text: str) -> bool:
    """Whether the whole text fits; capitals count."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=4_096)  # as many as are configured; texts of callers are never compiled
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))), re.DOTALL)
