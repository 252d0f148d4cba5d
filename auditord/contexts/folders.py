"""Folders below the state folder for the files of one instance each."""

from pathlib import Path
from typing import Final

from auditord_hookspecs import AuditordError

INSTANCES: Final = "instances"


def own_folder(state_dir: Path, instance: str) -> Path:
    """The folder of an instance, which nobody else can reach; made if it is missing.

    Raises:
        AuditordError: it cannot be made, or is not this user's.
    """
    folder = state_dir / INSTANCES / instance
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # a volume's owner may have opened it to a group (fsGroup)
    except OSError as error:
        raise AuditordError(f"{folder} cannot be used: {error.strerror}: it must be the daemon's own") from error
    return folder
