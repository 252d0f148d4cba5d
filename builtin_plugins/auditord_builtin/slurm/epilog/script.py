#!/usr/bin/python3 -IS
"""auditord-epilog: notes durably that a Slurm job has ended, for auditord's collector ``slurm_epilog``.

To be called by EpilogSlurmctld: ``auditord-epilog [FOLDER]``, or with the folder in ``AUDITORD_EPILOG_SPOOL``. Each
call makes one file in the folder, ``<job id>.<random>.job``. What matters is in its name and its time, so that even a
disk that is full in the middle loses no job. It holds the ``SLURM_*`` variables, each ended by NUL as in
``/proc/*/environ``, and one more NUL when all of them are there. Files never clash, so calls need no lock, and the
collector removes a file by its name when the job is accounted for.

The exit code is always 0, since Slurm drains nodes on any other. Trouble is one line on stderr and in the syslog.

Runs on the python3 of the system (3.6 or later), and imports only what the interpreter has loaded
already: it starts at the end of every job.
"""

import os
import sys

DEFAULT = "/var/spool/auditord-epilog"
MAX_DIGITS = 10  # job ids have 32 bits


def main() -> None:
    """Note the job; raises OSError or ValueError on any trouble."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("AUDITORD_EPILOG_SPOOL", "")
    job_id = os.environb.get(b"SLURM_JOB_ID", b"")
    if not job_id.isdigit() or len(job_id) > MAX_DIGITS:
        raise ValueError("SLURM_JOB_ID is no job id; was this called by Slurm?")
    note(given or DEFAULT, job_id.decode())


def note(folder: str, job_id: str) -> None:
    """Make the file; when this returns it survives a power cut."""
    os.umask(0o007)  # the daemon reads it by the folder's group
    name = "%s.%s.job" % (job_id, os.urandom(8).hex())
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o660, dir_fd=directory)
    try:
        write(file, variables())
    finally:  # also on a full disk: the name says enough
        os.fsync(file)
        os.fsync(directory)


def variables() -> bytes:
    """The variables that Slurm set, and the mark that they are complete."""
    found = [b"%s=%s\0" % item for item in sorted(os.environb.items()) if item[0].startswith(b"SLURM_")]
    return b"".join(found) + b"\0"


def write(file: int, content: bytes) -> None:
    """Write all of it, however many calls that takes."""
    while content:
        content = content[os.write(file, content) :]


def complain(error: BaseException) -> None:
    """One line for the administrator."""
    job = os.environ.get("SLURM_JOB_ID", "")[:40]
    line = ("auditord-epilog: job %r: %s: %s" % (job, type(error).__name__, error))[:400].replace("\n", " ")
    try:
        os.write(2, line.encode("utf-8", "replace") + b"\n")
    finally:
        import syslog  # noqa: PLC0415 costs a millisecond, which only trouble is worth

        syslog.syslog(syslog.LOG_ERR, line)


if __name__ == "__main__":
    try:
        try:
            main()
        except BaseException as error:  # noqa: BLE001 nothing at all may make Slurm drain a node
            complain(error)
    finally:
        os._exit(0)  # not sys.exit: the interpreter's own clean-up could still fail
