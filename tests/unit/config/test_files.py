"""``auditord config check`` names files that are not there."""

from pathlib import Path

from auditord.config.files import missing_files
from auditord.config.loading import load_text
from auditord.hooks import load_hooks

TEXT = """
state_dir: /s
api:
  listen:
    - address: "127.0.0.1:8443"
      tls: {certificate: /c.pem, key: /k.pem}
store: {url: "postgresql://u@h/d", sslrootcert: /ca.pem}
collectors:
  files: {kind: files, folder: /f}
  off: {kind: kubernetes, enabled: false, kubeconfig: /kube}
senders:
  far: {kind: remote, url: "https://h:1", tls: {ca: /there.pem}}
"""


def test_every_file_that_cannot_be_read_is_named_with_its_option() -> None:
    configuration = load_text(TEXT, "a.yml", load_hooks([]).kinds, {})
    lines = missing_files(configuration, lambda path: path == Path("/there.pem"))
    assert [line.split(": ")[0] for line in lines] == [
        "api.listen[0].tls.certificate",
        "api.listen[0].tls.key",
        "store.sslrootcert",
    ]
    assert "/c.pem does not exist" in lines[0]
