# Two images: `app`, this package with its drivers for servers, and `h2`, a server of H2.
#   docker build --target app --tag queue-over-sql .
#   docker build --target h2 --tag queue-over-sql-h2 .

# The distribution's own H2 is 2.2.220, new enough for SKIP LOCKED.
FROM debian:13-slim AS h2
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless libh2-java \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --home-dir /data h2
USER h2
VOLUME /data
EXPOSE 9092
# Clients may create databases, and the first one sets the password: for closed networks only.
ENTRYPOINT ["java", "-cp", "/usr/share/java/h2.jar", "org.h2.tools.Server", \
            "-tcp", "-tcpPort", "9092", "-tcpAllowOthers", "-ifNotExists", "-baseDir", "/data"]

FROM python:3.13-slim AS app
WORKDIR /app
COPY pyproject.toml hatch_build.py image-requirements.txt README.md LICENSE ./
COPY queue_over_sql ./queue_over_sql
COPY sqlalchemy_h2 ./sqlalchemy_h2
COPY pyspark_queue_over_sql ./pyspark_queue_over_sql
COPY examples ./examples
RUN pip install --no-cache-dir --require-hashes --requirement image-requirements.txt \
    && pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home app
USER app
WORKDIR /app/examples/deployment
# SIGTERM, which `docker stop` sends, makes workers finish the messages at hand.
STOPSIGNAL SIGTERM
ENTRYPOINT ["queue-over-sql"]
