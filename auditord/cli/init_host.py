"""This machine, and the discoveries of ``auditord init`` on it: sources that kinds know, PostgreSQL, an AUDITOR."""

import glob
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from auditord.config.kinds import InstalledKinds
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord_hookspecs.proposals import Answers, Detect, Host, Proposal, Question

_PATIENCE: Final = 20.0
_READY: Final = re.compile(r"^(?P<host>.+):(?P<port>\d+) - ")
_SERVICE_USER: Final = "auditord"
_DATABASE: Final = "auditord"
_AUDITOR_FILES: Final = ("/etc/auditor/*.yml", "/etc/auditor/*.yaml")


class ThisHost:
    """The machine that the command runs on."""

    environ: Mapping[str, str] = os.environ

    def run(self, argv: Sequence[str]) -> str | None:
        """Standard output of a program; None if it is not there, fails, or takes too long."""
        try:
            done = subprocess.run(  # noqa: S603 a kind's own words
                argv, capture_output=True, text=True, check=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return None
        return done.stdout

    def find(self, *patterns: str) -> Sequence[Path]:
        """The files that are there, in the order of the patterns."""
        found = [Path(name) for pattern in patterns for name in sorted(glob.glob(pattern))]  # noqa: PTH207 absolute
        return [path for path in found if path.is_file()]


def proposals(kinds: InstalledKinds, host: Host) -> Iterator[tuple[str, str, Proposal]]:
    """Section of the configuration, name of the kind and proposal of each kind that finds something."""
    for section in ("collectors", "plugins", "transforms"):
        for name, kind in kinds.sections()[section].items():
            detect: Detect | None = getattr(kind, "detect", None)
            if detect is not None and (proposal := detect(host)) is not None:
                yield section, name, proposal


def find_auditor(host: Host) -> Proposal | None:
    """The configuration of an AUDITOR and of its collectors."""
    files = host.find(*_AUDITOR_FILES)
    return Proposal(f"AUDITOR, configured in {files[0].parent}", imports=files) if files else None


@dataclass(frozen=True, slots=True)
class Postgresql:
    """A PostgreSQL server on this host.

    Args:
        url: of the database that auditord would have there.
        role: the daemon's user, who logs in without a password.
        is_ready: whether the role and the database are there.
    """

    url: str
    role: str
    is_ready: bool

    @property
    def found(self) -> str:
        """The server in words."""
        rest = "lets the role in" if self.is_ready else "has no such role and database yet"
        return f"PostgreSQL, which {rest}: {self.url}"

    @property
    def question(self) -> Question:
        """The question for the record store: never PostgreSQL by default unless it was prepared for auditord."""
        default = self.url if self.is_ready else "sqlite"
        return Question("store", "Keep records in 'sqlite' (a file in state_dir), or in PostgreSQL at a URL", default)

    @property
    def steps(self) -> Sequence[str]:
        """The commands that prepare the database."""
        psql = "runuser -u postgres -- psql"
        made = (
            f"""{psql} -c 'CREATE ROLE "{self.role}" LOGIN'""",
            f"""{psql} -c 'CREATE DATABASE {_DATABASE} OWNER "{self.role}"'""",
        )
        return () if self.is_ready else made


def find_postgresql(host: Host) -> Postgresql | None:
    """The server that libpq's programs find, by default or by PGHOST and PGPORT."""
    if (ready := _READY.match(host.run(["pg_isready"]) or "")) is None:
        return None
    user = (host.run(["id", "-un"]) or _SERVICE_USER).strip()
    serves_another = user == "root" and host.run(["id", "-u", _SERVICE_USER]) is not None
    role = _SERVICE_USER if serves_another else user
    port = "" if ready["port"] == "5432" else f"&port={ready['port']}"
    url = f"postgresql://{role}@/{_DATABASE}?host={quote(ready['host'])}{port}"
    become = ("runuser", "-u", role, "--") if serves_another else ()
    is_ready = host.run([*become, "psql", "-XAtw", "-c", "SELECT 1", url]) is not None
    return Postgresql(url, role, is_ready)


def store_options(answers: Answers) -> Mapping[str, str]:
    """The section ``store`` for the answer.

    Raises:
        ValueError: it is no store.
    """
    answer = answers.get("store", "sqlite")
    if answer == "sqlite":
        return {}
    if not is_postgresql(answer):
        sqlite_path(answer)
    return {"url": answer}
