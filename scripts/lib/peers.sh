# shellcheck shell=bash
# The libraries that benchmarks compare us with, in environments of their own, apart from our
# dependencies. Needs environment.sh and servers.sh.
#
#   QUEUE_OVER_SQL_PEERS   their folder (default: .cache/peers in the repository)
#
# Their versions are in scripts/benchmarks/contenders: requirements.txt, django.txt and package.json.
# The latter includes Node.js, because a distribution's may be too old.

PEERS="${QUEUE_OVER_SQL_PEERS:-$CACHE/peers}"
PEERS_PINNED="$ROOT/scripts/benchmarks/contenders"

# is_installed FOLDER FILE: whether FOLDER was created from the present version of FILE.
is_installed() {
  [ -f "$1/.made-from" ] && cmp -s "$2" "$1/.made-from"
}

ensure_python_peers() {
  local pinned="$PEERS_PINNED/requirements.txt"
  is_installed "$PEERS/venv" "$pinned" && return
  say "Installing the peers in Python"
  if ! "$(find_python)" -m venv --clear "$PEERS/venv" ||
    ! "$PEERS/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$pinned"; then
    fail "the peers in Python could not be installed: see above"
  fi
  cp "$pinned" "$PEERS/venv/.made-from"
}

ensure_node_peers() {
  local pinned="$PEERS_PINNED/package.json"
  is_installed "$PEERS/node" "$pinned" && return
  command -v npm >/dev/null || { may_install && apt_install npm; } ||
    fail "npm is required for the peers on Node.js: install it"
  say "Installing the peers on Node.js"
  mkdir -p "$PEERS/node"
  cp "$pinned" "$PEERS/node/package.json"
  # npm warns that its own Node.js is too old, but it installs a newer one for the peers.
  npm install --prefix "$PEERS/node" --no-package-lock --no-audit --no-fund --loglevel=error >&2 ||
    fail "the peers on Node.js could not be installed: see above"
  cp "$pinned" "$PEERS/node/.made-from"
}

# ensure_django_peers: the backends for Django's tasks, whose Django needs Python 3.12.
ensure_django_peers() {
  local pinned="$PEERS_PINNED/django.txt" candidate python=""
  # The Python that it was made with may be gone.
  is_installed "$PEERS/django" "$pinned" && "$PEERS/django/bin/python" -c "" 2>/dev/null && return
  for candidate in python3.14 python3.13 python3.12 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
      python="$candidate"
      break
    fi
  done
  if [ -z "$python" ]; then
    fetch_python || fail "the backends for Django's tasks need Python 3.12: install it"
    python="$PYTHON_FOLDER/environment/bin/python"
  fi
  say "Installing the backends for Django's tasks"
  # Debian's Python has no pip of its own for environments.
  if ! "$python" -m venv --clear --without-pip "$PEERS/django" ||
    ! "$VENV/bin/python" -m pip --python "$PEERS/django/bin/python" install --quiet \
      --disable-pip-version-check -r "$pinned"; then
    fail "the backends for Django's tasks could not be installed: see above"
  fi
  cp "$pinned" "$PEERS/django/.made-from"
}

# ensure_peers: install all peers at their pinned versions.
ensure_peers() {
  mkdir -p "$PEERS"
  ensure_python_peers
  ensure_node_peers
}
