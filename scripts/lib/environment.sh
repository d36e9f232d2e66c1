# shellcheck shell=bash
# The virtual environment of the scripts: created at its first use, and updated when pyproject.toml
# or constraints.txt has changed.
#
#   QUEUE_OVER_SQL_VENV   its folder (default: .venv in the repository)
#   PYTHON                the interpreter to create it with (default: the first of 3.11 or newer)

ROOT="$(cd -P "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
VENV="${QUEUE_OVER_SQL_VENV:-$ROOT/.venv}"
CACHE="$ROOT/.cache"
# The extras for lint, tests and documentation. All use the same, so that one environment is enough.
CHECKS=all,adbc,spark-connect,docs,lint,test

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

is_recent_python() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
    # A program on the PATH may be a shim for a version that is not installed, so try each.
    if is_recent_python "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "Python 3.11 or newer is required. Install it (for example the packages python3 and" \
    "python3-venv), or name one: PYTHON=/path/to/python3.11 $0"
}

make_environment() {
  is_recent_python "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && return
  local python
  python="$(find_python)"
  say "Creating the virtual environment $VENV"
  "$python" -m venv --clear "$VENV" ||
    fail "$python cannot create virtual environments: install the package python3-venv"
}

# install_package EXTRAS: install this repository, editable, with EXTRAS (comma-separated or empty).
install_package() {
  local extras="$1" wanted stamp
  make_environment
  wanted="$extras $(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum) $ROOT"
  stamp="$VENV/.queue-over-sql-installed"
  if [ -f "$stamp" ] && grep -qxF "$wanted" "$stamp"; then
    return
  fi
  say "Installing queue-over-sql${extras:+[$extras]}"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "$ROOT/constraints.txt" --editable "$ROOT${extras:+[$extras]}" || return 1
  printf '%s\n' "$wanted" >>"$stamp"
}
