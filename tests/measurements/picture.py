"""The picture of the page that the README shows, of the demo's data: ``python tests/measurements/picture.py [FILE]``.

It starts ``auditord demo``, looks at it with Chromium (tests/services/chromium-install), and writes a PNG.
The demo's jobs end now, so that dates and the last bars differ from day to day.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.chromium import chromium

PICTURE: Final = Path(__file__).parents[2] / "etc/pictures/page.png"
LARGEST: Final = 150_000
"""Bytes; a test holds the picture to it."""

_SCREEN: Final = {"width": 1280, "height": 890}


@contextmanager
def demo() -> Generator[str]:
    """The URL of a running demo."""
    command = [sys.executable, "-m", "auditord", "demo", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = iter(process.stdout or ())
            yield next(found[1] for line in lines if (found := re.match(r"Look at it:\s+(\S+)", line)))
        finally:
            process.terminate()


def photographed(url: str) -> bytes:
    """The first page as a PNG."""
    with chromium() as browser:
        page = browser.new_page(viewport=_SCREEN, color_scheme="light", timezone_id="UTC")
        page.goto(url, wait_until="networkidle")
        taken: bytes = page.screenshot()
    return taken


def main() -> None:
    """Make the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=PICTURE)
    file: Path = parser.parse_args().file
    with demo() as url:
        picture = photographed(url)
    if len(picture) > LARGEST:
        raise SystemExit(f"{len(picture):,} bytes: more than {LARGEST:,}; {file} is left as it was")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(picture)
    sys.stdout.write(f"{file}: {len(picture):,} bytes\n")


if __name__ == "__main__":
    main()
