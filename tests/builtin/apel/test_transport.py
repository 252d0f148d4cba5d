"""Certificates, signatures and the broker, against OpenSSL and a TLS server that demands a client certificate."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from pydantic import ValidationError

from auditord.testing import FakePluginContext
from auditord_builtin.apel.config import ApelConfig, MessagingConfig
from auditord_builtin.apel.publishing import run_apel
from auditord_builtin.apel.sending import (
    AmsClient,
    BrokerRefused,
    BrokerUnavailable,
    CertificateUnusable,
    MessageTooLarge,
    load_credentials,
    open_broker,
    sign,
)
from auditord_hookspecs import AuditordError, Component, Record, Score
from auditord_hookspecs.months import Month
from tests.ams_broker import ams_broker, receive
from tests.builtin.apel.apel_settings import apel_section
from tests.host_certificates import Authority, HostFiles

NOW = datetime.now(UTC)
HTTP = FakePluginContext().http
MESSAGE = "APEL-sync-message: v0.1\nSite: EXAMPLE\nSubmitHost: ce\nNumberOfJobs: 3\nMonth: 3\nYear: 2024\n%%\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def host(authority: Authority) -> HostFiles:
    return authority.issue("ce.example.org")


# -- certificates -----------------------------------------------------------------------------------------------------


def test_the_subject_is_written_as_in_gocdb(host: HostFiles) -> None:
    credentials = load_credentials(host.certificate, host.key)
    assert credentials.subject == "/DC=org/DC=example/O=Jörg's Institute/CN=ce.example.org"
    assert credentials.check(NOW) is None


@pytest.mark.parametrize(("days", "verdict"), [(15, None), (13, "in 13 days: renew it"), (0, "in 0 days: renew it")])
def test_a_certificate_that_ends_soon_is_a_warning(authority: Authority, days: int, verdict: str | None) -> None:
    ends = (NOW + timedelta(days=days, hours=1)).replace(microsecond=0)
    files = authority.issue(f"soon{days}", valid=(NOW - timedelta(days=9), ends), old_style_key=False)
    warning = load_credentials(files.certificate, files.key).check(NOW)
    assert (warning is None) if verdict is None else (warning is not None and verdict in warning)


@pytest.mark.parametrize(("begins", "ends", "words"), [(-9, -1, "expired on"), (1, 9, "not valid before")])
def test_a_certificate_out_of_its_time_is_refused(authority: Authority, begins: int, ends: int, words: str) -> None:
    valid = NOW + timedelta(days=begins), NOW + timedelta(days=ends)
    files = authority.issue(f"out{ends}", valid=valid, old_style_key=False)
    with pytest.raises(CertificateUnusable, match=words):
        load_credentials(files.certificate, files.key).check(NOW)


def test_files_that_cannot_be_used_are_named(authority: Authority, host: HostFiles, tmp_path: Path) -> None:
    other = authority.issue("other", old_style_key=False)
    locked = authority.issue("locked", passphrase=b"secret")
    text = tmp_path / "text.pem"
    text.write_text("nothing")
    for certificate, key, words in [
        (tmp_path / "none.pem", host.key, "none.pem: cannot be read"),
        (host.certificate, other.key, "is not the key of the certificate"),
        (locked.certificate, locked.key, "key is encrypted"),
        (text, host.key, "no certificate"),
        (host.certificate, text, "no private key"),
    ]:
        with pytest.raises(CertificateUnusable, match=words):
            load_credentials(certificate, key)


# -- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "site", ["EXAMPLE", "Jörg=ß", "application/pkcs7-mime", "=20 trailing ", "Ж" * 300, "𝄞", "x" * 5_000]
)
@pytest.mark.parametrize("old_style_key", [True, False])
def test_openssl_and_the_receiver_read_what_is_signed(authority: Authority, site: str, *, old_style_key: bool) -> None:
    files = authority.issue("signer", old_style_key=old_style_key)
    text = MESSAGE.replace("EXAMPLE", site)
    signed = sign(text, load_credentials(files.certificate, files.key))
    assert signed.isascii()
    assert receive(signed, authority.file) == text


def test_a_changed_message_is_not_believed(authority: Authority, host: HostFiles) -> None:
    signed = sign(MESSAGE, load_credentials(host.certificate, host.key))
    with pytest.raises(ValueError, match="digest failure"):
        receive(signed.replace(b"NumberOfJobs: 3", b"NumberOfJobs: 4"), authority.file)


# -- the broker -------------------------------------------------------------------------------------------------------


def open_at_once(messaging: MessagingConfig, retries: int = 2) -> AbstractAsyncContextManager[AmsClient]:
    """Open a client that does not wait before it asks again."""
    return open_broker(messaging, HTTP, retries=retries, first_wait=0)


def at(url: str, certificate: Path, key: Path) -> MessagingConfig:
    return MessagingConfig(auth_url=f"{url}/token", ams_url=f"{url}/publish", client_cert=certificate, client_key=key)


def test_the_paths_are_those_of_ams() -> None:
    messaging = MessagingConfig(host="msg.example", client_cert=Path("c"), client_key=Path("k"))
    assert (messaging.token_url, messaging.publish_url()) == (
        "https://msg.example:8443/v1/service-types/ams/hosts/msg.example:authx509",
        "https://msg.example:443/v1/projects/accounting/topics/gLite-APEL:publish",
    )
    assert messaging.publish_url("a b") == "https://msg.example:443/v1/projects/accounting/topics/a%20b:publish"


@pytest.mark.anyio
async def test_messages_are_published_with_one_token(authority: Authority, host: HostFiles) -> None:
    credentials = load_credentials(host.certificate, host.key)
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host)) as client:
        assert [await client.publish(sign(MESSAGE, credentials), f"label{n}") for n in range(3)] == ["1", "2", "3"]
        assert ams.texts() == [MESSAGE] * 3
        assert [label for label, _ in ams.published] == ["label0", "label1", "label2"]
        assert ams.tokens == 1


@pytest.mark.anyio
async def test_accelerators_have_a_topic_of_their_own_at_the_same_broker(authority: Authority, host: HostFiles) -> None:
    now = datetime.now(UTC)
    async with ams_broker(authority) as ams:
        found = ams.for_client(host)
        section = apel_section(
            sites={"SITE-A": ["a"]}, since=Month.of(now).start, certificate=host.certificate, key=host.key
        )
        where = {"auth_url": found.token_url, "ams_url": f"{found.publish_url()}?key=", "ca_path": str(authority.file)}
        section["messaging"] |= where
        section["accelerators"] = {"associated_record_type": "cloud", "topic": "gpus", "component": "Cores"}
        parts = (Component("Cores", 1, (Score("HEPscore23", 10.0),)), Component("TotalCPU", 1, ()))
        labels: dict[str, tuple[str, ...]] = {"site_id": ("a",), "voms": ("x",), "submit_host": ("ce",)}
        record = Record("1", now - timedelta(hours=1), parts, max(now, Month.of(now).start), labels)
        context = FakePluginContext(instance="apel", moment=now, stored=[record])
        await run_apel(ApelConfig.model_validate(section), context)
        assert ams.topics == ["gLite-APEL", "gLite-APEL", "gpus"]
        section["messaging"]["ams_url"] = f"{ams.url}/publish"
        with pytest.raises(ValidationError, match="ams_url must name one"):
            ApelConfig.model_validate(section)


@pytest.mark.anyio
async def test_a_token_that_was_taken_back_is_fetched_anew_once(authority: Authority, host: HostFiles) -> None:
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host)) as client:
        await client.publish(b"one", "1")
        ams.tokens = 7  # the next one is another
        assert await client.publish(b"two", "2") == "2"
        ams.fault = lambda _: 403
        with pytest.raises(BrokerRefused, match="403"):
            await client.publish(b"three", "3")


@pytest.mark.anyio
async def test_a_ready_token_needs_no_certificate_service(authority: Authority, host: HostFiles) -> None:
    async with ams_broker(authority) as ams:
        nowhere = "https://127.0.0.1:1/"
        ready = ams.for_client(host, token=ams.valid_token, auth_url=nowhere)
        async with open_at_once(ready) as client:
            assert await client.publish(b"one", "1") == "1"
            assert ams.tokens == 0


@pytest.mark.anyio
@pytest.mark.parametrize("fault", [0, 408, 429, 500, 502, 503, 504])
async def test_passing_faults_are_outlasted(authority: Authority, host: HostFiles, fault: int) -> None:
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host)) as client:
        ams.fault = lambda number: fault if number < 3 else None
        assert await client.publish(b"text", "1") == "1"
        ams.fault = lambda _: fault
        with pytest.raises(BrokerUnavailable):
            await client.publish(b"text", "2")
        assert len(ams.published) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("fault", [400, 404, 409])
async def test_what_no_repetition_helps_is_not_repeated(authority: Authority, host: HostFiles, fault: int) -> None:
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host)) as client:
        ams.fault = lambda _: fault
        with pytest.raises(BrokerRefused, match="not so"):
            await client.publish(b"text", "1")
        assert ams.requests == 1


@pytest.mark.anyio
async def test_an_answer_that_is_cut_makes_the_message_come_twice(authority: Authority, host: HostFiles) -> None:
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host)) as client:
        ams.fault = lambda number: -1 if number == 1 else None
        assert await client.publish(b"text", "1") == "2"
        assert ams.published == [("1", b"text")] * 2


@pytest.mark.anyio
async def test_a_message_over_the_limit_is_said_so(authority: Authority, host: HostFiles) -> None:
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host)) as client:
        with pytest.raises(MessageTooLarge):
            await client.publish(b"x" * 700_000, "1")
        assert ams.requests == 0  # known before
        ams.limit = 1_000
        with pytest.raises(MessageTooLarge, match="413"):
            await client.publish(b"x" * 2_000, "1")


@pytest.mark.anyio
async def test_both_sides_of_tls_want_to_know_the_other(authority: Authority, host: HostFiles, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    async with ams_broker(authority) as ams:
        async with open_at_once(ams.for_client(stranger.issue("intruder", old_style_key=False))) as client:
            with pytest.raises(BrokerUnavailable):
                await client.publish(b"text", "1")
        distrusting = ams.for_client(host, ca_path=stranger.file)
        async with open_at_once(distrusting) as client:
            with pytest.raises(BrokerRefused, match="not trusted"):
                await client.publish(b"text", "1")
        async with open_at_once(distrusting.model_copy(update={"verify_ca": False})) as client:
            assert await client.publish(b"text", "1") == "1"


@pytest.mark.anyio
async def test_authorities_may_be_a_folder_of_hashed_names(
    authority: Authority, host: HostFiles, tmp_path: Path
) -> None:
    (tmp_path / "authority.pem").write_bytes(authority.file.read_bytes())
    await anyio.run_process(["openssl", "rehash", str(tmp_path)])
    async with ams_broker(authority) as ams, open_at_once(ams.for_client(host, ca_path=tmp_path)) as client:
        assert await client.publish(b"text", "1") == "1"


@pytest.mark.anyio
async def test_a_broker_that_is_not_there_is_a_passing_fault(host: HostFiles) -> None:
    nowhere = at("https://127.0.0.1:1", host.certificate, host.key)
    async with open_at_once(nowhere) as client:
        with pytest.raises(BrokerUnavailable, match=r"/token: cannot connect: .*127\.0\.0\.1"):
            await client.publish(b"text", "1")


@pytest.mark.anyio
async def test_tls_files_that_cannot_be_used_are_named(host: HostFiles) -> None:
    with pytest.raises(AuditordError, match=r"none\.pem"):
        async with open_at_once(at("https://a", Path("/none.pem"), host.key)):
            pass
