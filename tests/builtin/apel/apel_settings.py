"""A configuration of the APEL plugin for tests."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from auditord_builtin.apel.config import ApelConfig


def apel_section(
    *,
    sites: Mapping[str, Sequence[str]],
    since: datetime | None,
    certificate: Path = Path("/none.pem"),
    key: Path = Path("/none.key"),
    **messaging: Any,  # Any: as in a file
) -> dict[str, Any]:
    """The section as a file has it, without ``kind``."""
    fields: dict[str, Any] = {
        "VO": {"type": "MetaField", "name": "voms"},
        "SubmitHost": {"type": "MetaField", "name": "submit_host"},
    }
    return {
        "site": {
            "sites_to_report": {site: list(ids) for site, ids in sites.items()},
            "publish_since": None if since is None else since.isoformat(),
        },
        "messaging": {"client_cert": str(certificate), "client_key": str(key), **messaging},
        "summary_fields": {"mandatory": fields},
        "individual_job_fields": {"optional": fields},
    }


def apel_settings(
    *, sites: Mapping[str, Sequence[str]], since: datetime | None, jobs: bool = False, **messaging: Any
) -> ApelConfig:
    """The options of an instance."""
    kind = "individual_jobs" if jobs else "summaries"
    return ApelConfig.model_validate({**apel_section(sites=sites, since=since, **messaging), "message_type": kind})
