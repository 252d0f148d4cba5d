"""A distribution of a third party with one hook module, installed into a folder for PYTHONPATH."""

from pathlib import Path


def install(folder: Path, source: str) -> None:
    """Install ``auditord-thirdparty`` 4.5.6, whose entry point ``thirdparty`` is a module of the given source."""
    (folder / "auditord_thirdparty.py").write_text(source)
    metadata = folder / "auditord_thirdparty-4.5.6.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: auditord-thirdparty\nVersion: 4.5.6\n")
    (metadata / "entry_points.txt").write_text("[auditord.hooks]\nthirdparty = auditord_thirdparty\n")
