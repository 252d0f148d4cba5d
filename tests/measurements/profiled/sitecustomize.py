"""Note every call into auditord's own files between two signals; loaded by a process that has this folder on its path.

SIGUSR1 begins, SIGUSR2 writes the calls as JSON to the file that PROFILE_TO names: a list of files for each task of the
event loop, and for each call from outside that belongs to none (a callback of the loop, work in a thread).
"""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

_PACKAGES = ("/auditord/", "/auditord_hookspecs/", "/auditord_builtin/")
_LOOP = "/asyncio/runners.py"  # below it on the stack is the command that runs the loop, whatever is called
# Work for the process and not for the call: looks that are taken every few seconds, whatever is called.
_BESIDE = ("/watchdog.py", "/logs.py", "/systemd.py", "/tasks/gauges.py")
_calls: list[list[str]] = []
_open: dict[object, list[str]] = {}  # the lists that may grow, by task or by the outermost frame's id
_starts: dict[CodeType, int] = {}  # a coroutine that goes on is called again, at a later instruction
_recording = False


def _noted(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event == "call" and _is_ours(frame):
        first = _starts.setdefault(code, frame.f_lasti)
        if frame.f_lasti < first:
            _starts[code] = frame.f_lasti
        if _recording and frame.f_lasti <= first and not code.co_filename.endswith(_BESIDE):
            _list_of(frame).append(code.co_filename)


def _is_ours(frame: FrameType) -> bool:
    return any(each in frame.f_code.co_filename for each in _PACKAGES)


def _list_of(frame: FrameType) -> list[str]:
    outermost, below = frame, frame.f_back
    while below is not None and not below.f_code.co_filename.endswith(_LOOP):
        outermost, below = below if _is_ours(below) else outermost, below.f_back
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    key = id(outermost) if task is None else task
    if key not in _open or key == id(frame):  # another frame may have had the same place in memory
        _open[key] = []
        _calls.append(_open[key])
    return _open[key]


def _begin(*_: object) -> None:
    global _recording  # noqa: PLW0603 one flag for every thread
    _calls.clear()
    _open.clear()
    _recording = True


def _write(*_: object) -> None:
    global _recording  # noqa: PLW0603 the same
    _recording = False
    target = Path(os.environ["PROFILE_TO"])
    target.with_suffix(".part").write_text(json.dumps(_calls))
    target.with_suffix(".part").rename(target)


if "PROFILE_TO" in os.environ:
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _write)
    threading.setprofile(_noted)
    sys.setprofile(_noted)
