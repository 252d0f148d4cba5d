"""A collector without sites is reported wherever an operator looks."""

from pathlib import Path

from tests.acceptance.slurm.daemon import Site

REMARK = "collectors.slurm: sites is missing: every record is labelled NOT_CONFIGURED"


def test_missing_sites_are_reported_everywhere(tmp_path: Path) -> None:
    site = Site(tmp_path, sacct="true", meta=[])
    assert f"remark: {REMARK}" in site.command("config", "check").stderr
    again = ("--from", "2026-01-01", "--to", "2026-01-02")
    assert "remark: sites is missing" in site.command("collect", "slurm", "--dry-run", *again).stderr
    with site.daemon():
        site.wait_for_run()
        assert REMARK in site.text()
        assert "remark: sites is missing" in site.command("collect", "slurm", "--dry-run", *again).stderr


def test_where_a_site_is_named_nothing_is_remarked(tmp_path: Path) -> None:
    site = Site(tmp_path, sacct="true", meta=[], sites=[{"name": "S"}])
    assert "remark" not in site.command("config", "check").stderr
