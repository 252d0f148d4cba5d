#!/usr/bin/python3 -IS
"""auditord-epilog: durably notes the end of a Slurm job for auditord's collector ``slurm_epilog``.

Called by EpilogSlurmctld as ``auditord-epilog [FOLDER]``, or with the folder in ``AUDITORD_EPILOG_SPOOL``. Each call
creates one file in the folder, ``<job id>.<random>.job``. The name and the modification time suffice, so no job is lost
even if the disk fills up during the write. The file contains the ``SLURM_*`` variables, each terminated by NUL as in
``/proc/*/environ``, and one more NUL once the list is complete. File names are unique, so calls need no lock. The
collector removes a file once its job is accounted for.

The exit code is always 0, since Slurm drains nodes on any other. Errors are one line on stderr and in the syslog.

Runs on the system's python3 (3.6 or later) at the end of every job, so it only imports modules that the interpreter has
already loaded.
"""

import os
import sys

DEFAULT = "/var/spool/auditord-epilog"
MAX_DIGITS = 10  # job ids have 32 bits


def main() -> None:
    """Write a note about the job, or raise OSError or ValueError."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("AUDITORD_EPILOG_SPOOL", "")
    job_id = os.environb.get(b"SLURM_JOB_ID", b"")
    if not job_id.isdigit() or len(job_id) > MAX_DIGITS:
        raise ValueError("SLURM_JOB_ID is not a job id; was this called by Slurm?")
    note(given or DEFAULT, job_id.decode())


def note(folder: str, job_id: str) -> None:
    """Write the file. Once this returns, the file survives a power cut."""
    os.umask(0o007)  # the daemon reads the file as a member of the folder's group
    name = "%s.%s.job" % (job_id, os.urandom(8).hex())
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o660, dir_fd=directory)
    try:
        write(file, variables())
    finally:  # sync even if the disk is full, since the name suffices
        os.fsync(file)
        os.fsync(directory)


def variables() -> bytes:
    """Return the variables that Slurm set, and the NUL that marks the end of the list."""
    found = [b"%s=%s\0" % item for item in sorted(os.environb.items()) if item[0].startswith(b"SLURM_")]
    return b"".join(found) + b"\0"


def write(file: int, content: bytes) -> None:
    """Write the whole content, with several calls if necessary."""
    while content:
        content = content[os.write(file, content) :]


def complain(error: BaseException) -> None:
    """Print and log the error as one line."""
    job = os.environ.get("SLURM_JOB_ID", "")[:40]
    line = ("auditord-epilog: job %r: %s: %s" % (job, type(error).__name__, error))[:400].replace("\n", " ")
    try:
        os.write(2, line.encode("utf-8", "replace") + b"\n")
    finally:
        import syslog  # noqa: PLC0415 the import takes a millisecond, so only after an error

        syslog.syslog(syslog.LOG_ERR, line)


if __name__ == "__main__":
    try:
        try:
            main()
        except BaseException as error:  # noqa: BLE001 no error may make Slurm drain a node
            complain(error)
    finally:
        os._exit(0)  # not sys.exit, since the interpreter's clean-up could still fail
