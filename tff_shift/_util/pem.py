"""Checks of PEM files, before gRPC waits for a connection with them."""

import os
import ssl


def check_certificate(name: str, path: str) -> None:
  """Refuses files with which gRPC would never connect.

  Args:
    name: The name of the setting, for messages.
    path: Its value.

  Raises:
    FileNotFoundError: If there is no file.
    ValueError: If it holds no certificate.
  """
  if not os.path.isfile(path):
    raise FileNotFoundError(f"{name}: there is no file {path}")
  try:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
  except OSError as error:  # Errors of TLS are OSErrors too.
    raise ValueError(
      f"{name}: {path} holds no certificate that can be read"
      f" ({_reason(error)}); a PEM file is wanted, which begins with"
      " -----BEGIN CERTIFICATE-----"
    ) from error


def check_key(
  certificate_name: str, certificate: str, key_name: str, key: str
) -> None:
  """Refuses files without a key, with a password, or with another key.

  Args:
    certificate_name: The name of the setting of the certificate.
    certificate: Its value, a file with a certificate and its chain.
    key_name: The name of the setting of its key.
    key: Its value.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If one of them holds something else.
  """
  if not os.path.isfile(key):
    raise FileNotFoundError(f"{key_name}: there is no file {key}")
  check_certificate(certificate_name, certificate)
  try:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
      # Without a password argument, OpenSSL would prompt for one.
      certificate,
      key,
      password="",
    )
  except OSError as error:
    raise ValueError(
      f"{key_name}: {key} holds no key of {certificate} that can be read"
      f" ({_reason(error)}); a PEM file is wanted, without a password, which"
      " begins with -----BEGIN PRIVATE KEY-----"
    ) from error


def _reason(error: OSError) -> str:
  """Returns why a file was refused, without the line of Python's source."""
  return error.strerror.partition(" (_ssl")[0]
