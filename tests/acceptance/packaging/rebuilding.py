"""A package is built a second time with what was fetched for the first."""

from collections.abc import Sequence
from pathlib import Path


def with_what_is_fetched(work: Path, again: Path) -> Sequence[str | Path]:
    """Options of rpm/build that take wheels from the folder of an earlier build; its tools are used as well.

    The bill of materials is not validated a second time, which takes a fifth of the build's CPU time: the first build
    did that, and a bill with other bytes would make another package.
    """
    programs = again / "tools/bin"
    programs.mkdir(parents=True)
    for name, option in {"python": "", "cyclonedx-py": " --no-validate"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {work}/tools/bin/{name} "$@"{option}\n')
        (programs / name).chmod(0o755)
    return "--wheels", work / "wheels"
