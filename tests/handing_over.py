"""Results that one process prepares for all of a test session (pytest-xdist): files of JSON in a folder."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pytest

T = TypeVar("T")

FOLDER: Final = "PYTEST_AUDITORD_SESSION"
"""The environment variable that names the folder; other processes of the session inherit it."""

_PATIENCE: Final = 180.0
"""Seconds until what is promised must be there."""


def hand_over(name: str, prepare: Callable[[], object]) -> None:
    """Prepare something for whoever asks for it; a fault fails those who do, and not the whole session."""
    try:
        content = msgspec.json.encode({"ready": prepare()}, enc_hook=str)  # paths
    except Exception as error:  # noqa: BLE001 whatever it is, it is reported by the tests that need the thing
        content = msgspec.json.encode({"fault": f"{error} {getattr(error, 'stderr', None) or ''}".strip()})
    path = _path(name)
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").rename(path)


def handed_over(name: str, kind: type[T]) -> T:
    """The result that was prepared under this name, once it is; fails the test if that went wrong."""
    path, deadline = _path(name), time.monotonic() + _PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {_PATIENCE:g} s for what this session should have prepared: {name}")
        time.sleep(0.1)
    found = msgspec.json.decode(path.read_bytes())
    if "fault" in found:
        pytest.fail(f"could not be prepared: {name}: {found['fault']}")
    return msgspec.convert(found["ready"], kind, dec_hook=lambda path, text: path(text))


def _path(name: str) -> Path:
    return Path(os.environ[FOLDER]) / f"{name}.json"
