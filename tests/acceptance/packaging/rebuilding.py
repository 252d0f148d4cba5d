"""A package is built a second time with what was fetched for the first."""

from collections.abc import Sequence
from pathlib import Path


def with_what_is_fetched(work: Path, again: Path) -> Sequence[str | Path]:
    """Options of rpm/build that take wheels from the folder of an earlier build; its tools are used as well."""
    again.mkdir(parents=True)
    (again / "tools").symlink_to(work / "tools")
    return "--wheels", work / "wheels"
