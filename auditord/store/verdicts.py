"""The rules of what a second record with a known id means, without any database."""

from dataclasses import dataclass, field

from auditord.duplicates import Duplicates
from auditord.store.protocol import Verdict


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties by which two records with one id are the same run, and the same in everything.

    Args:
        start: microseconds since 1970 in UTC.
        stop: the same, or None while open.
        content: see :func:`auditord.store.rows.content_hash`.
        anonymous: of a new record that names a user: the same without that.
    """

    start: int
    stop: int | None
    content: int
    anonymous: int | None = field(default=None, compare=False)


def classify(stored: Identity, offered: Identity, duplicates: Duplicates) -> Verdict:
    """The verdict about a record whose id is known already.

    CLOSED asks the store to put the new record in the stored one's place, DIFFERENT to note the difference, SAME to
    do nothing. One exception: of an open record that came back the earlier start counts, see :func:`starts_earlier`.
    """
    if duplicates is Duplicates.REFUSE:
        return Verdict.EXISTS
    if offered == stored or _came_back(stored, offered):
        return Verdict.SAME
    if offered.start == stored.start:
        return _classify_same_run(stored, offered)
    return Verdict.DIFFERENT if duplicates is Duplicates.IGNORE else Verdict.EXISTS


def starts_earlier(stored: Identity, offered: Identity) -> bool:
    """Return whether an open record that came back has an earlier start: deliveries may overtake each other."""
    return _came_back(stored, offered) and offered.start < stored.start


def _classify_same_run(stored: Identity, offered: Identity) -> Verdict:
    if offered.stop is None and stored.stop is not None:
        return Verdict.SAME  # late news of a run whose end is known
    if offered.stop is not None and stored.stop is None:
        return Verdict.CLOSED
    if offered.anonymous == stored.content and offered.stop == stored.stop:
        return Verdict.SAME  # the stored one has forgotten its user
    return Verdict.DIFFERENT


def _came_back(stored: Identity, offered: Identity) -> bool:
    return stored.stop is None and offered.stop is None and stored.content == offered.content
