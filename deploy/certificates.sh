#!/bin/sh
# Makes certificates for proxies in front of workers, valid for a year.
#
#   deploy/certificates.sh FOLDER NAME...
#
# NAME: the host name of a proxy, as in --workers. FOLDER gets an authority
# (authority.crt), a certificate of the proxies (server.crt, server.key) and one
# of the driver (client.crt, client.key). The authority's key is deleted: to add
# a name, run the script again.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 FOLDER NAME..." >&2; exit 2; }
umask 077
mkdir -p "$1"
cd "$1"
shift
names=$(printf ',DNS:%s' "$@")

sign() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
  echo "subjectAltName=$2" > "$1.ext"
  openssl x509 -req -days 365 -in "$1.csr" -extfile "$1.ext" -out "$1.crt" \
    -CA authority.crt -CAkey authority.key -CAcreateserial
  rm "$1.csr" "$1.ext"
}

openssl req -x509 -days 365 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 \
  -nodes -subj /CN=authority -keyout authority.key -out authority.crt
sign server "${names#,}"
sign client DNS:client
rm -f authority.key authority.srl
