# Holdfast in a container: built from this checkout, run as uid 1883 with its data in /data.
#
#   docker build -t holdfast .
#   docker run -p 1883:1883 -v holdfast:/data -e HOLDFAST__AUTH__ALLOW_ANONYMOUS=true holdfast
#
# Without a password file or that line it refuses to start: an open broker is a decision.
# The core is compiled, or the build fails; the compiler stays behind in the first stage.
#
# `docker build --target audit -t holdfast:audit .` makes another image, for the audit: Java and
# Spark, a gigabyte of them. The broker's image has neither: it exports its history with pyarrow.

FROM python:3.13-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV HOLDFAST_BUILD=compiled
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY holdfast_mqtt holdfast_mqtt
COPY mqtt mqtt
COPY session session
COPY storage storage
COPY broker broker
COPY audit audit
COPY conformance conformance
RUN python -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir \
        '.[history,redis,dynamodb,cassandra,kafka,admin]'

# What is installed already is taken as it is; only what the extra asks for is added.
FROM build AS build-audit
RUN /opt/holdfast/bin/pip install --no-cache-dir 'holdfast-mqtt[audit]'

FROM python:3.13-slim-bookworm AS audit
LABEL org.opencontainers.image.title="holdfast audit" \
      org.opencontainers.image.description="The audit of Holdfast's session history, with Spark" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1883 holdfast \
    && useradd --uid 1883 --gid 1883 --home-dir /audit --no-create-home holdfast \
    && install --directory --owner=1883 --group=1883 --mode=0700 /audit
COPY --from=build-audit /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 1883:1883
WORKDIR /audit
ENTRYPOINT ["holdfast"]
CMD ["--help"]

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="The MQTT broker whose sessions cannot be lost" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 1883 holdfast \
    && useradd --uid 1883 --gid 1883 --home-dir /data --no-create-home holdfast \
    && install --directory --owner=1883 --group=1883 --mode=0700 /data
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOLDFAST__LISTENER__HOST=0.0.0.0 \
    HOLDFAST__METRICS__HOST=0.0.0.0 \
    HOLDFAST__STORAGE__DATA_DIR=/data
USER 1883:1883
WORKDIR /data
VOLUME /data
EXPOSE 1883 18083
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["holdfast", "health", "--url", "http://127.0.0.1:18083"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]
