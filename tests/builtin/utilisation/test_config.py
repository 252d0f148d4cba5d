"""Options that would do harm are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from auditord_builtin.utilisation.config import UtilisationConfig

MAIL = {"sender": "accounting@example.org", "recipients": ["boss@example.org"]}


def with_mail(**changes: Any) -> dict[str, Any]:  # Any: options
    return {"mail": {**MAIL, **changes}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (with_mail(recipients=[]), "no mail would be sent"),
        (with_mail(recipients=["boss@example.org"] * 2), "listed twice"),
        (with_mail(recipients=["Boss <boss@example.org>"]), "is not a mail address"),
        (with_mail(sender="a@b\nBcc: c@d"), "is not a mail address"),
        (with_mail(sender="jörg@example.org"), "is not a mail address"),
        (with_mail(server={"host": "mx", "security": "none", "user": "a", "password": "b"}), "sent unencrypted"),
        (with_mail(server={"user": "a"}), "must be set together"),
        (with_mail(users={"address": "all@example.org"}), r"needs \{user\}"),
        ({"title": "two\nlines"}, "title"),
        ({"csv": {"folder": "reports"}}, "'reports' is relative"),
        ({"energy": {"grid_intensity": {"file": "grid.csv"}}}, "'grid.csv' is relative"),
        (with_mail(server={"ca": "ca.pem"}), "'ca.pem' is relative"),
        ({"csv": {"folder": "/srv", "name": "report.csv"}}, "overwrite"),
        ({"csv": {"folder": "/srv", "name": "../{period}"}}, "must be a file name"),
        ({"csv": {"folder": "/srv", "name": "{month}-{period}"}}, "must be a file name"),
        ({"components": {"cores": "GPU"}}, "two purposes"),
        ({"group_names": [{"matches": "^a", "name": "{1}"}]}, "no such group"),
        ({"energy": {"pue": 0.9}}, "pue"),
        ({"energy": {"watt_per_core": -1}}, "watt_per_core"),
        ({"watt_per_core": 5}, "watt_per_core"),
    ],
)
def test_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        UtilisationConfig.model_validate(options)


@pytest.mark.parametrize(("security", "port"), [("starttls", 587), ("ssl", 465), ("none", 25)])
def test_the_port_follows_the_security(security: str, port: int) -> None:
    config = UtilisationConfig.model_validate(with_mail(server={"security": security}))
    assert config.mail is not None
    assert config.mail.server.port_number == port
