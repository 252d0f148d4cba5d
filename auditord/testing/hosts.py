"""A machine for tests of ``detect``: what its programs print, which files it has."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec


class FakeHost(msgspec.Struct, frozen=True):
    """A host as ``auditord init`` shows it to a kind's ``detect``.

    An example::

        assert detect(FakeHost()) is None
        assert detect(FakeHost(programs={"lpstat": "device for main: ipp://printer"})) is not None

    Args:
        programs: what each program prints, by its name; all others are not installed.
        files: absolute paths.
        environ: the environment variables.
    """

    programs: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    files: Sequence[str] = ()
    environ: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    def run(self, argv: Sequence[str]) -> str | None:
        """Return the output of a program; its arguments are ignored."""
        return self.programs.get(argv[0])

    def find(self, *patterns: str) -> Sequence[Path]:
        """The files that match, in the order of the patterns."""
        return [Path(name) for pattern in patterns for name in sorted(self.files) if fnmatchcase(name, pattern)]
