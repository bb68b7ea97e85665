#!/usr/bin/env bash
# Brings the composition up from nothing, with a real engine and no image registry, and leaves nothing:
#
#     deploy/test/compose.sh
#
# Needs root, Debian's docker.io, docker-compose, debootstrap and prometheus (apt-get install --no-install-recommends), and
# `make install`. Where one of them is missing it says so and is skipped; COMPOSE_TEST_REQUIRED=1 makes that a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-.venv/bin/python}
SCRATCH=$(mktemp -d)
LABEL=minefleet-test
ENGINE_PID=

skip() {
    echo "SKIPPED deploy/test/compose.sh: $*"
    [ -z "${COMPOSE_TEST_REQUIRED:-}" ] || exit 1
    exit 0
}

say() { printf '%s %s\n' "$(date +%T)" "$*"; }

clean_up() {
    code=$?
    set +e
    if docker info >/dev/null 2>&1; then
        for image in parameters replay learner actor prometheus; do docker rmi --force "$LABEL-$image"; done >/dev/null
        docker image prune --force --filter label=minefleet.stage=build >/dev/null
        docker rmi --force "$LABEL-base" >/dev/null
    fi
    if [ -n "$ENGINE_PID" ]; then
        say "stopping the engine"
        kill "$ENGINE_PID" && wait "$ENGINE_PID"
    fi
    rm -rf "$SCRATCH" wheelhouse
    exit $code
}

require() {
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "$program is missing"
    done
}

start_engine() {
    if docker info >/dev/null 2>&1; then return; fi
    say "starting an engine"
    dockerd >"$SCRATCH/dockerd.log" 2>&1 &
    ENGINE_PID=$!
    for _ in $(seq 30); do
        docker info >/dev/null 2>&1 && return
        sleep 1
    done
    skip "no engine runs here, and none can be started: $(tail -n 1 "$SCRATCH/dockerd.log")"
}

# What python:3.11-slim is for this purpose, and an image with Debian's Prometheus.
build_base_images() {
    say "building base images"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$SCRATCH/root" >"$SCRATCH/debootstrap.log"
    rm -rf "$SCRATCH"/root/var/cache/apt/*.bin "$SCRATCH"/root/var/cache/apt/archives/*.deb "$SCRATCH"/root/var/lib/apt/lists/*
    ln -sf python3 "$SCRATCH/root/usr/bin/python"
    tar -C "$SCRATCH/root" -c . | docker import --change 'CMD ["python3"]' - "$LABEL-base" >/dev/null
    cp "$(command -v prometheus)" "$SCRATCH/root/usr/bin/"
    install --directory --owner 65534 "$SCRATCH/root/prometheus"
    tar -C "$SCRATCH/root" -c . | docker import --change 'USER 65534:65534' --change 'ENTRYPOINT ["prometheus"]' - "$LABEL-prometheus" >/dev/null
}

# The packages of all roles, as the index has them here.
fill_wheelhouse() {
    say "gathering packages"
    "$PYTHON" -m pip wheel --quiet --wheel-dir wheelhouse --constraint constraints.txt \
        '.[replay,parameters,actor,learner,crafter,wandb,tensorboard,stores,watch]' hatchling >"$SCRATCH/pip.log" 2>&1 || { cat "$SCRATCH/pip.log"; exit 1; }
    rm wheelhouse/minefleet-*.whl
}

[ "$(id --user)" = 0 ] || skip "only root can run an engine and debootstrap"
require docker debootstrap prometheus tar
if docker compose version >/dev/null 2>&1; then COMPOSE="docker compose"; else COMPOSE=docker-compose PARALLEL=--parallel; require docker-compose; fi
trap clean_up EXIT
start_engine
build_base_images
fill_wheelhouse
export BASE_IMAGE="$LABEL-base" PROMETHEUS_IMAGE="$LABEL-prometheus" IMAGES="$LABEL" COMPOSE_PROJECT_NAME="$LABEL-$$" PROMETHEUS_PORT=${PROMETHEUS_PORT:-19090}
export WATCH_PORT=${WATCH_PORT:-18800} WATCH_TOKEN=compose-test-$$
say "building images"
$COMPOSE build ${PARALLEL:-} >"$SCRATCH/build.log" 2>&1 || { tail -n 40 "$SCRATCH/build.log"; exit 1; }
"$PYTHON" deploy/test/scenario.py $COMPOSE
