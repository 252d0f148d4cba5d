"""Write the pages of the manual that come from the sources: ``python -m tests.references.write``.

A test says when they are outdated.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.references.contract import hooks_markdown, types_markdown
from tests.references.sources import ROOT, errors_markdown, metrics_markdown

FOLDER: Final = ROOT / "auditord/manual/reference"
PAGES: Final[Mapping[Path, Callable[[], str]]] = {
    FOLDER / "errors.md": errors_markdown,
    FOLDER / "hooks.md": hooks_markdown,
    FOLDER / "metrics.md": metrics_markdown,
    FOLDER / "types.md": types_markdown,
}


def main() -> None:
    """Write all pages."""
    for path, make in PAGES.items():
        path.write_text(make())


if __name__ == "__main__":
    main()
