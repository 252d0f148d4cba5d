"""The checks that kinds bring for ``auditord doctor``: where all is well, and with one broken thing each."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import stamina
from anyio import to_thread

from auditord.testing import FakePluginContext
from auditord_builtin.access import connections, jwt
from auditord_builtin.access.connections import UnixUsersConfig
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_builtin.apel import publishing as apel
from auditord_builtin.remote import delivery as remote
from auditord_builtin.remote.delivery import RemoteConfig
from auditord_builtin.utilisation import running as utilisation
from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.waldur import reporting as waldur
from auditord_hookspecs import InstanceConfig
from auditord_hookspecs.checks import Check, Finding, Severity
from tests.ams_broker import AmsBroker, ams_broker
from tests.builtin.access.test_jwt import issuer, key_set
from tests.builtin.apel.apel_settings import apel_settings
from tests.builtin.utilisation.test_running import server_side
from tests.fake_auditor import fake_auditor
from tests.host_certificates import Authority, HostFiles
from tests.mail_server import HOST, Mailbox, mail_server
from tests.waldur_server import TOKEN, fake_waldur
from tests.waldur_settings import OFFERING, waldur_config

pytestmark = pytest.mark.anyio

NOW: Final = datetime.now(UTC)
NOWHERE: Final = "127.0.0.1:1"
"""No server listens there."""


async def findings(check: Check, config: InstanceConfig) -> list[Finding]:
    with stamina.set_testing(True, attempts=1):
        return [each async for each in check(config, FakePluginContext(moment=NOW))]


async def fault(check: Check, config: InstanceConfig) -> Finding:
    """The one thing that is not well; it has a remedy."""
    [found] = [each for each in await findings(check, config) if each.severity is not Severity.OK]
    assert found.severity is Severity.FAILURE
    assert found.remedy
    return found


async def test_a_destination() -> None:
    with fake_auditor() as auditor:
        [well] = await findings(remote.check, RemoteConfig(url=auditor.url))
        assert (well.severity, well.text) == (Severity.OK, "it answers and is healthy")
        auditor.refuse_with = 503
        assert "unhealthy" in (await fault(remote.check, RemoteConfig(url=auditor.url))).text
    assert "check the server" in (await fault(remote.check, RemoteConfig(url=f"http://{NOWHERE}"))).remedy


# -- authenticators ---------------------------------------------------------------------------------------------------


def jwt_config(url: str, **options: Any) -> JwtConfig:  # Any: as in a file
    section = {"issuer": url, "audience": ["a"], "rules": [{"group": "g", "roles": ["reader"]}], **options}
    return JwtConfig.model_validate(section)


async def test_the_keys_of_an_issuer(tmp_path: Path) -> None:
    async with issuer() as url:
        found = await findings(jwt.check, jwt_config(url))
        assert [(each.subject, each.severity) for each in found] == [("jwt", Severity.OK), ("keys", Severity.OK)]
        assert found[1].text == f"{url} has 3 keys for signatures"
        other = await fault(jwt.check, jwt_config(f"{url}/"))
        assert "names another issuer" in other.text
    assert (await fault(jwt.check, jwt_config(url))).subject == "keys"
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": []}))
    empty = await fault(jwt.check, jwt_config(url, jwks=f"file:{file}"))
    assert (empty.text, empty.remedy) == (f"{url} has no public key for signatures", "is jwks right?")
    file.write_text(json.dumps(key_set()))
    lost = await fault(jwt.check, jwt_config(url, jwks=f"file:{file}", ca=tmp_path / "absent.pem"))
    assert lost.subject == str(tmp_path / "absent.pem")


async def test_pyjwt_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found(name: str) -> None:
        assert name == "jwt"

    monkeypatch.setattr("auditord_hookspecs.checks.find_spec", none_found)
    found = await fault(jwt.check, jwt_config("https://idp.example.org"))
    assert found.remedy == "pip install 'auditord[jwt]'"


async def test_users_and_groups_of_this_host() -> None:
    rules = [
        {"user": "root", "roles": ["r"]},
        {"group": "0", "roles": ["r"]},
        {"group": "nobody-has-this", "roles": ["r"]},
    ]
    config = UnixUsersConfig.model_validate({"rules": rules})
    found = await findings(connections.check_unix_users, config)
    assert [each.subject for each in found if each.severity is Severity.OK] == ["user root", "group 0"]
    assert (await fault(connections.check_unix_users, config)).text == "this host has no group 'nobody-has-this'"


# -- plugins ----------------------------------------------------------------------------------------------------------


async def test_waldur() -> None:
    with fake_waldur(now=NOW) as server:
        access_of = {"waldur_api_url": server.url, "waldur_api_token": TOKEN}
        found = await findings(waldur.check, waldur_config(**access_of))
        assert {each.severity for each in found} == {Severity.OK}
        assert found[1].text == "Cluster (Active) with the components cpu, mem"
        denied = await fault(waldur.check, waldur_config(**access_of | {"waldur_api_token": "another"}))
        assert (denied.subject, "401" in denied.text) == ("waldur", True)
        other = OFFERING.replace("3", "4")
        unknown = await fault(waldur.check, waldur_config(**access_of, waldur_offering_uuid=other))
        assert (unknown.subject, "404" in unknown.text) == ("offering", True)
    away = await fault(waldur.check, waldur_config(waldur_api_url=f"http://{NOWHERE}", waldur_api_token=TOKEN))
    assert away.subject == "waldur"


def mail_config(port: int, **server: Any) -> UtilisationConfig:  # Any: as in a file
    server = {"host": HOST, "port": port, "security": "none", **server}
    mail = {"server": server, "sender": "a@example.org", "recipients": ["b@example.org"]}
    return UtilisationConfig.model_validate({"mail": mail})


async def test_a_mail_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with mail_server(Mailbox(), tls=server_side(authority), password=True) as mailbox:
        login = {"security": "starttls", "ca": str(authority.file), "user": "auditord", "password": "secret"}
        found = await findings(utilisation.check, mail_config(mailbox.port, **login))
        assert {each.severity for each in found} == {Severity.OK}
        assert found[-1].text == "the mail server answers, and accepts the login"
        refused = await fault(utilisation.check, mail_config(mailbox.port, **login | {"password": "wrong"}))
        assert "535" in refused.text
        assert mailbox.mails == []
    assert "cannot be reached" in (await fault(utilisation.check, mail_config(1))).text


async def test_the_files_of_a_report(tmp_path: Path) -> None:
    energy = {"grid_intensity": {"file": str(tmp_path / "absent.csv")}}
    config = UtilisationConfig.model_validate({"csv": {"folder": str(tmp_path)}, "energy": energy})
    assert (await fault(utilisation.check, config)).subject == str(tmp_path / "absent.csv")
    (tmp_path / "absent.csv").touch()
    assert len(await findings(utilisation.check, config)) == 2
    elsewhere = UtilisationConfig.model_validate({"csv": {"folder": str(tmp_path / "absent")}})
    assert (await fault(utilisation.check, elsewhere)).remedy.startswith("create the folder")


def apel_config(broker: AmsBroker, files: HostFiles, url: str, token: str | None = None) -> Any:  # Any: a configuration
    return apel_settings(
        sites={"S": ["s"]},
        since=NOW,
        certificate=files.certificate,
        key=files.key,
        auth_url=f"{url}/v1/service-types/ams/hosts/127.0.0.1:authx509",
        ams_url=f"{url}/v1/projects/accounting/topics/gLite-APEL:publish",
        ca_path=str(broker.authority.file),
        token=token,
    )


async def test_the_broker_of_apel(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = await to_thread.run_sync(authority.issue, "ce.example.org")
    async with ams_broker(authority) as broker:
        found = await findings(apel.check, apel_config(broker, files, broker.url))
        assert {each.severity for each in found} == {Severity.OK}
        assert broker.published == []
        wrong = await fault(apel.check, apel_config(broker, files, f"{broker.url}/nothing"))
        assert (wrong.subject, "GOCDB" in wrong.remedy) == ("broker", True)
        away = await fault(apel.check, apel_config(broker, files, f"https://{NOWHERE}"))
        assert "messaging.host" in away.remedy
    swapped = HostFiles(files.certificate, authority.issue("other").key)
    assert "is not the key of" in (await fault(apel.check, apel_config(broker, swapped, broker.url))).text


async def test_a_configured_token_of_apel_is_not_reported_as_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = await to_thread.run_sync(authority.issue, "ce.example.org")
    async with ams_broker(authority) as broker:
        found = await findings(apel.check, apel_config(broker, files, broker.url, token="expired"))  # noqa: S106 no secret
    assert broker.requests == 0
    [broker_finding] = [each for each in found if each.subject == "broker"]
    assert "messaging.token is set, and only publishing a message shows" in broker_finding.text
