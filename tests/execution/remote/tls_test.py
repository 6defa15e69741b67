"""Tests of encrypted connections, to proxies that terminate TLS."""

import contextlib
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest

from tff_shift import execution

pytestmark = pytest.mark.cpp


class TestTls:
  @pytest.fixture(scope="class")
  def certificates(self, tmp_path_factory) -> Path:
    """A folder with an authority, a server and a client it has signed."""
    pytest.importorskip("cryptography", reason="makes the certificates")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("certificates")
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)

    def make(name, issuer=None, is_authority=False):
      key = ec.generate_private_key(ec.SECP256R1())
      subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
      issuer_name, issuer_key = issuer or (subject, key)
      loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
      certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(is_authority, None), True)
        .add_extension(x509.SubjectAlternativeName([loopback]), False)
        .sign(issuer_key, hashes.SHA256())
      )
      pem = serialization.Encoding.PEM
      (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))
      (folder / f"{name}.key").write_bytes(
        key.private_bytes(
          pem,
          serialization.PrivateFormat.PKCS8,
          serialization.NoEncryption(),
        )
      )
      return subject, key

    authority = make("authority", is_authority=True)
    make("server", authority)
    make("client", authority)
    make("stranger", is_authority=True)
    return folder

  def tls(self, certificates, *, asks_who=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
      certificates / "server.crt", certificates / "server.key"
    )
    context.set_alpn_protocols(["h2"])
    if asks_who:
      context.verify_mode = ssl.CERT_REQUIRED
      context.load_verify_locations(certificates / "authority.crt")
    return context

  def test_encrypted(self, workers, proxy, use, count, certificates):
    authority = str(certificates / "authority.crt")
    with contextlib.ExitStack() as stack:
      proxies = [
        stack.enter_context(proxy(worker.port, self.tls(certificates)))
        for worker in workers[:2]
      ]
      with use(proxies, worker_certificate=authority):
        assert count([3, 6, 9]) == ([3, 6, 9], 2.0)
      assert [each.num_connections for each in proxies] == [1, 1]

  def test_client_shows_who_it_is(
    self, workers, proxy, use, count, certificates
  ):
    settings = {"worker_certificate": str(certificates / "authority.crt")}
    shown = {
      "worker_client_certificate": str(certificates / "client.crt"),
      "worker_client_key": str(certificates / "client.key"),
    }
    tls = self.tls(certificates, asks_who=True)
    with proxy(workers[0].port, tls) as passing:
      with use([passing], **settings, **shown):
        assert count([3]) == ([3], 1.0)
      with (
        pytest.raises(execution.WorkerError, match=passing.address),
        use([passing], **settings, worker_timeout=1.0),
      ):
        pass

  @pytest.mark.parametrize(
    ("certificate", "message"),
    [("stranger.crt", "CERTIFICATE_VERIFY_FAILED"), (None, "UNAVAILABLE")],
  )
  def test_refused(
    self, workers, proxy, use, certificates, certificate, message
  ):
    path = certificate and str(certificates / certificate)
    with (
      proxy(workers[0].port, self.tls(certificates)) as passing,
      pytest.raises(execution.WorkerError, match=message) as error,
      use([passing], worker_certificate=path, worker_timeout=1.0),
    ):
      pass
    assert "\n" not in str(error.value)
