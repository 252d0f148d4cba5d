"""Note every call into auditord's own files between two signals; loaded by a process that has this folder on its path.

SIGUSR1 begins, SIGUSR2 writes the calls as JSON, one list of files per thread, to the file that PROFILE_TO names.
"""

import json
import os
import signal
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

_PACKAGES = ("/auditord/", "/auditord_hookspecs/", "/auditord_builtin/")
# Work for the process and not for the call: looks that are taken every few seconds, whatever is called.
_BESIDE = ("/watchdog.py", "/logs.py", "/systemd.py", "/tasks/gauges.py", "/spool/exposition.py")
_calls: dict[int, list[str]] = defaultdict(list)
_starts: dict[CodeType, int] = {}  # a coroutine that goes on is called again, at a later instruction
_recording = False


def _noted(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event == "call" and any(each in code.co_filename for each in _PACKAGES):
        first = _starts.setdefault(code, frame.f_lasti)
        if frame.f_lasti < first:
            _starts[code] = frame.f_lasti
        if _recording and frame.f_lasti <= first and not code.co_filename.endswith(_BESIDE):
            _calls[threading.get_ident()].append(code.co_filename)


def _begin(*_: object) -> None:
    global _recording  # noqa: PLW0603 one flag for every thread
    _calls.clear()
    _recording = True


def _write(*_: object) -> None:
    global _recording  # noqa: PLW0603 the same
    _recording = False
    target = Path(os.environ["PROFILE_TO"])
    target.with_suffix(".part").write_text(json.dumps(list(_calls.values())))
    target.with_suffix(".part").rename(target)


if "PROFILE_TO" in os.environ:
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _write)
    threading.setprofile(_noted)
    sys.setprofile(_noted)
