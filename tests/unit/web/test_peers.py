"""The user behind a Unix socket, as the kernel tells it."""

import json
import os
import subprocess
import sys

_ASK = """
import json, os, socket
from types import SimpleNamespace as Fake
from auditord.web.access.credentials import unix_peer
if os.getuid() == 0:
    os.setgroups([7, 4711])
here, there = socket.socketpair()
peer = unix_peer(Fake(transport=Fake(get_extra_info={"socket": here}.get)))
print(json.dumps([peer.uid, peer.gid, sorted(peer.groups), sorted(set(os.getgroups()))]))
"""


def test_all_groups_of_the_user_are_known() -> None:
    """In a process of its own, which may have other groups than the tests."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, check=True, timeout=60)
    uid, gid, groups, expected = json.loads(done.stdout)
    assert (uid, gid, groups) == (os.getuid(), os.getgid(), expected)
