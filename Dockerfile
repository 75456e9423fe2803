# A GPU runner in a container: SGLang's own image, and the plugin in a virtual environment beside it, as a user without
# rights. docs/gpu-runner.md says how it is started; it measures with the SGLang that is in it.
#
#   podman build -t r1perf-runner:0.5.20 .
#   podman build --build-arg BASE=docker.io/lmsysorg/sglang@sha256:... -t r1perf-runner:0.5.20 .     # pinned to the byte
ARG BASE=docker.io/lmsysorg/sglang:v0.5.20
FROM ${BASE}

ARG RUN_UID=10001
ARG EXTRAS=gpu,html

# hadolint ignore=DL3008 # the base image's own release decides which versions there are
RUN apt-get update \
    && apt-get install -y --no-install-recommends git python3-venv util-linux \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid "${RUN_UID}" --create-home --shell /usr/sbin/nologin r1perf \
    && install -d -o r1perf -g r1perf /opt/r1perf /var/lib/r1perf

# An environment of its own: nothing of the plugin's gets into SGLang's, whose versions are what is measured.
WORKDIR /opt/r1perf
COPY --chown=r1perf:r1perf pyproject.toml README.md LICENSE ./
COPY --chown=r1perf:r1perf pytest_r1perf pytest_r1perf
USER ${RUN_UID}
RUN python3 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --disable-pip-version-check ".[${EXTRAS}]"

COPY --chown=r1perf:r1perf scripts scripts
COPY --chown=r1perf:r1perf perf_tests perf_tests
COPY --chown=r1perf:r1perf baselines baselines
COPY --chown=r1perf:r1perf conftest.py ./

# Sessions and reports go to a volume; baselines and r1perf.yaml are mounted over these where the site has its own.
ENV R1PERF_OUT=/var/lib/r1perf/sessions \
    R1PERF_LOCK=/var/lib/r1perf/host.lock \
    NIGHTLY_SGLANG=/usr/bin/python3
VOLUME /var/lib/r1perf
ENTRYPOINT ["scripts/nightly.sh"]
