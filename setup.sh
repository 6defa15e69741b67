#!/bin/sh
# Makes the virtual environment: ./setup.sh PYTHON VENV. Called by the Makefile.
#
# The lock is installed without resolving, because TFF's own pin of jaxlib is of
# a release that is gone (overrides.txt). What is wrong with the machine is said
# in one line.
set -u
python=$1
venv=$2
log=$venv.log

fail() {
  echo "setup: $1" >&2
  exit 1
}

command -v "$python" >/dev/null 2>&1 ||
  fail "there is no '$python'; install Python 3.11, or name it: make PYTHON=/path/to/python3.11"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
  fail "'$python' does not run; name a Python 3.11: make PYTHON=/path/to/python3.11"
[ "$version" = 3.11 ] ||
  fail "'$python' is Python $version; TensorFlow Federated 0.87 needs 3.11: make PYTHON=/path/to/python3.11"

# Made anew: what an interrupted or older installation left may not fit.
rm -rf "$venv"
"$python" -m venv "$venv" >"$log" 2>&1 ||
  fail "'$python -m venv' failed; on Debian and Ubuntu install python3.11-venv (see $log)"

echo "setup: installing requirements.txt into $venv (about 2 GB, once)"
"$venv/bin/pip" install --disable-pip-version-check --no-input --no-deps \
  --requirement requirements.txt >"$log" 2>&1 || {
  if grep -qiE 'NewConnectionError|ConnectTimeout|name resolution|Network is unreachable|ProxyError|Could not find a version' "$log"; then
    fail "packages could not be downloaded: is there a network, and does pip reach a package index? (see $log)"
  elif grep -qiE 'gcc|compiler|Microsoft Visual C' "$log"; then
    fail "a package has to be compiled and there is no compiler: install gcc and the headers of Python 3.11 (see $log)"
  fi
  fail "installing requirements.txt failed (see $log)"
}
"$venv/bin/pip" install --disable-pip-version-check --no-input --no-deps \
  --no-build-isolation --editable . >>"$log" 2>&1 ||
  fail "installing tff_shift itself failed (see $log)"
rm -f "$log"
