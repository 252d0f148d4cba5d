"""A client certificate that ends while its connection is open opens nothing any more."""

import ssl
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography.x509 import load_pem_x509_certificate

from tests.api_server import NOW, api_server, record
from tests.host_certificates import Authority

pytestmark = pytest.mark.anyio


async def test_a_certificate_that_has_ended_opens_nothing_on_an_old_connection(tmp_path: Path) -> None:
    authority, moment = Authority(tmp_path), [NOW]
    server, client = authority.issue("localhost"), authority.issue("collector")
    trust = ssl.create_default_context(cafile=str(authority.file))
    trust.load_cert_chain(client.certificate, client.key)
    tls = {"certificate": str(server.certificate), "key": str(server.key), "client_ca": str(authority.file)}

    def now() -> datetime:
        return moment[0]

    listen = {"address": "127.0.0.1:0", "tls": tls}
    async with api_server(tmp_path, listen=listen, client_tls=trust, now=now) as api:
        assert (await api.ask("POST", "/record", record("a"))).status == 200
        moment[0] = load_pem_x509_certificate(client.certificate.read_bytes()).not_valid_after_utc
        assert (await api.get("/records")).status == 200
        moment[0] += timedelta(seconds=1)
        assert (await api.get("/records")).status == 401
        with pytest.raises(aiohttp.ClientError):  # a client of AUDITOR takes any whole answer for success
            await api.ask("POST", "/record", record("b"))
        moment[0] = NOW
        assert (await api.get("/record/b")).status == 404
