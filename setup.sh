#!/bin/sh
# Makes the virtual environment: ./setup.sh PYTHON VENV LOCK. Called by the Makefile.
#
# The lock is installed without resolving and without asking what TFF says of
# Python and of other packages, because it runs beside newer ones (overrides.txt).
# What is wrong with the machine is said in one line.
set -u
python=$1
venv=$2
lock=$3
log=$venv.log

fail() {
  echo "setup: $1" >&2
  exit 1
}

case $lock in
*tf2.14*) needed=3.11 ;;
*) needed="3.13, 3.12 or 3.11" ;;
esac
command -v "$python" >/dev/null 2>&1 ||
  fail "there is no '$python'; install Python $needed, or name it: make PYTHON=/path/to/python3"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
  fail "'$python' does not run; name a Python $needed: make PYTHON=/path/to/python3"
case " $needed " in
*" $version "* | *" $version,"*) ;;
*) fail "'$python' is Python $version; $lock needs $needed: make PYTHON=/path/to/python3" ;;
esac

# Made anew: what an interrupted or older installation left may not fit.
rm -rf "$venv"
"$python" -m venv "$venv" >"$log" 2>&1 ||
  fail "'$python -m venv' failed; on Debian and Ubuntu install python$version-venv (see $log)"

install() {
  "$venv/bin/pip" install --disable-pip-version-check --no-input --no-deps \
    --ignore-requires-python "$@" >>"$log" 2>&1
}

# TFF last, by what knows how to install it on any platform, and imports it.
install_lock() {
  grep -v '^tensorflow-federated==' "$lock" >"$venv/others.txt"
  install --requirement "$venv/others.txt" &&
    "$venv/bin/python" -m tff_shift.install_tff >>"$log" 2>&1
}

echo "setup: installing $lock into $venv by Python $version (about 2 GB, once)"
install_lock || {
  if grep -qiE 'NewConnectionError|ConnectTimeout|name resolution|Network is unreachable|ProxyError|Could not find a version' "$log"; then
    fail "packages could not be downloaded: is there a network, and does pip reach a package index? (see $log)"
  elif grep -qiE 'gcc|compiler|Microsoft Visual C' "$log"; then
    fail "a package has to be compiled and there is no compiler: install gcc and the headers of Python $version (see $log)"
  fi
  fail "installing $lock failed (see $log)"
}
install --no-build-isolation --editable . &&
  # Of a wheel it is a part, see setup.py; of an editable installation it is not.
  cp tff_shift.pth "$("$venv/bin/python" -c \
    'import sysconfig; print(sysconfig.get_path("purelib"))')" ||
  fail "installing tff_shift itself failed (see $log)"
rm -f "$log"
