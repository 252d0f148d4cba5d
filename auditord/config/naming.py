"""What to say about a name that does not exist."""

from collections.abc import Collection
from difflib import get_close_matches


def suggestion(name: str, allowed: Collection[str]) -> str:
    """The end of a sentence that refuses a name: the likely one, and all that are allowed."""
    likely = get_close_matches(name, allowed, n=1)
    meant = f"; did you mean '{likely[0]}'?" if likely else ""
    return f"{meant} (allowed: {', '.join(sorted(allowed))})" if allowed else meant
