"""The part of the unit's sandbox that a process can put on without systemd, for a program that is then run in it.

``python3 sandbox.py UNIT PROGRAM ARGUMENTS…``: no new privileges, no capabilities, no writable memory that is executed,
a user namespace in which nobody else exists, and of the system calls and address families those that UNIT allows. Needs
libseccomp (systemd brings it) and Linux 6.3. Uses the standard library alone, so that any Python runs it.
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

ALLOW = 0x7FFF0000
EPERM = 0x00050000 | 1
EAFNOSUPPORT = 0x00050000 | 97
EQUAL = 4
NO_NEW_PRIVS, MDWE = 38, 65
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}


class Comparison(ctypes.Structure):
    """libseccomp's ``struct scmp_arg_cmp``: what an argument of a call must be."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def calls(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    words = [line.strip() for line in done.stdout.splitlines()[1:]]
    named = [word for word in words if word and not word.startswith("#")]
    return set[str]().union(*(calls(word) if word.startswith("@") else {word} for word in named))


def values(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


def allowed(unit: str) -> set[str]:
    """The system calls that ``SystemCallFilter=`` leaves: the first line allows, the others take away."""
    first, *others = values(unit, "SystemCallFilter")
    kept = set[str]().union(*map(calls, first.split()))
    for line in others:
        kept = kept.difference(*map(calls, line.removeprefix("~").split()))
    return kept


def load_filter(names: set[str], families: set[int]) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(EPERM))
    for name in names - {"socket"}:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # others belong to other architectures
            check(library.seccomp_rule_add(context, ALLOW, number, 0))
    socket = library.seccomp_syscall_resolve_name(b"socket")
    for family in range(64):
        verdict = ALLOW if family in families else EAFNOSUPPORT
        comparison = (Comparison * 1)(Comparison(0, EQUAL, family, 0))
        check(library.seccomp_rule_add_array(context, verdict, socket, 1, comparison))
    check(library.seccomp_load(context))


def check(result: int) -> None:
    """Raise what a call complained of: the C library by errno, libseccomp by the negative number itself."""
    if result:
        number = ctypes.get_errno() if result == -1 else -result
        raise OSError(number, os.strerror(number))


def own_user_namespace() -> None:
    """Act as ``PrivateUsers=`` does: this user is itself, everybody else is nobody."""
    uid, gid = os.getuid(), os.getgid()
    check(ctypes.CDLL(None, use_errno=True).unshare(0x10000000))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def main() -> None:
    """Put it on, become the program."""
    unit = Path(sys.argv[1]).read_text()
    names = allowed(unit)
    families = {FAMILIES[name] for name in values(unit, "RestrictAddressFamilies")[0].split()}
    own_user_namespace()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    check(prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    check(prctl(MDWE, 1, 0, 0, 0))
    load_filter(names, families)
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 that is what this is for


if __name__ == "__main__":
    main()
