"""What the tests of executors share."""

import datetime
import ipaddress
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Path:
  """A folder of certificates and keys.

  An authority has signed those of a server, a client, and two without a
  subjectAltName; a stranger has signed its own. `<name>.locked` is a key with a
  password.
  """
  pytest.importorskip("cryptography", reason="makes the certificates")
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes
  from cryptography.hazmat.primitives import serialization
  from cryptography.hazmat.primitives.asymmetric import ec

  folder = tmp_path_factory.mktemp("certificates")
  now = datetime.datetime.now(datetime.UTC)
  day = datetime.timedelta(days=1)
  loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))

  def make(name, issuer=None, is_authority=False, names=(loopback,)):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer_name, issuer_key = issuer or (subject, key)
    builder = (
      x509.CertificateBuilder()
      .subject_name(subject)
      .issuer_name(issuer_name)
      .public_key(key.public_key())
      .serial_number(x509.random_serial_number())
      .not_valid_before(now - day)
      .not_valid_after(now + day)
      .add_extension(x509.BasicConstraints(is_authority, None), True)
    )
    if names:
      builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))
    for suffix, encryption in (
      ("key", serialization.NoEncryption()),
      ("locked", serialization.BestAvailableEncryption(b"word")),
    ):
      (folder / f"{name}.{suffix}").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
      )
    return subject, key

  authority = make("authority", is_authority=True)
  make("server", authority)
  make("client", authority)
  make("elsewhere", authority, names=[x509.DNSName("elsewhere")])
  make("127.0.0.1", authority, names=())
  make("localhost", authority, names=())
  make("stranger", is_authority=True)
  return folder
