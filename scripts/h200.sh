#!/usr/bin/env bash
# The plugin on a real H200, in stages: engine mode, fresh processes, the gate, what the plugin costs, what goes wrong.
#
#   scripts/h200.sh                              # all stages for one GPU, about 25 minutes
#   scripts/h200.sh --until 540 setup cold engine    # those stages, and none that would not end within 540 s
#   scripts/h200.sh --rehearse                   # the same on the CPU rig (make rig), small; shows that it works
#
# A stage that fails doesn't keep the next ones from running; one that doesn't fit into the time left is skipped and says
# so. Stages can be called one by one, in several calls: all state is in $H200_WORK. Seconds are those of one H200 on
# which a process takes about 60 s to start, and the first one 90 s to 130 s.
#
#   setup      50   looks what is there, makes model and data set if none are named, samples the workloads
#   cold      180   offline mode on a machine with empty kernel caches: the first process is thrown away, the next counts
#   engine    215   15 loads x 3 windows behind one engine start; stores a baseline, or is compared with the stored one
#   gate      190   A/A: unchanged, four loads; then a cap on running requests: has to be REGRESSED
#   overhead   65   the bare command and the plugin in turn; that long for a process, as many as there is time for
#   validity  150   pytest and its guard killed by SIGKILL; the next session ends what is left; a start-up that hangs
#   noise     150   10 windows in one engine at three loads
#   engines   330   fresh engines of the same three loads, as many as there is time for; never by default
#   ablation  120   CUDA graphs up to the whole batch instead of 128
#   versions  420   $H200_SITE_NEW against $H200_SITE: only where it is set, and never by default
#   two       520   two GPUs: tp2, pp2 as one node and as two local nodes, ep2; never by default
#
# Variables, all optional:
#   OUT            where results go: report.txt, summary.txt, records.jsonl, machine.txt, sessions.tar.gz, baselines.yaml
#   H200_WORK      model, data set, the pytest project and its sessions (default: ./h200-work)
#   H200_SGLANG    the Python that has SGLang (default: python3)
#   H200_SITE      a folder with SGLang for its PYTHONPATH, where it isn't installed
#   H200_PYTHON    the Python that pytest runs in (default: python3)
#   R1_SLICE, SHAREGPT   a model's folder and a data set; without them a slice of R1's layer shapes in FP8 is made
#   H200_STATE     a sessions.tar.gz of an earlier call, to go on from on another machine (its baselines)
set -u

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(dirname "$HERE")
UNTIL=1800
REHEARSE=
STAGES=()
while [ $# -gt 0 ]; do
    case $1 in
        --until) UNTIL=$2; shift ;;
        --rehearse) REHEARSE=1 ;;
        -h | --help) sed -n '2,/^set -u/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 0 ;;
        -*) echo "h200.sh: option '$1' is not known; --until SECONDS, --rehearse, --help" >&2; exit 2 ;;
        *) STAGES+=("$1") ;;
    esac
    shift
done
[ ${#STAGES[@]} -gt 0 ] || STAGES=(setup cold engine gate overhead validity noise ablation)

export H200_REHEARSE=$REHEARSE
export H200_WORK=${H200_WORK:-$PWD/h200-work}
export OUT=${OUT:-$H200_WORK/out}
export H200_PYTHON=${H200_PYTHON:-python3}
export H200_SITE=${H200_SITE:-}
[ -n "$REHEARSE" ] || export H200_SGLANG=${H200_SGLANG:-$(command -v python3)}
[ -n "$REHEARSE" ] || export R1PERF_HOME=${R1PERF_HOME:-$H200_WORK/home}
export PYTHONPATH=$REPO PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
PROJECT=$H200_WORK/project
mkdir -p "$OUT" "$PROJECT"

say() { printf '\n== %4d s  %s\n' "$SECONDS" "$*"; }

piece() { # one of the Python pieces beside this script
    local name=$1
    shift
    "$H200_PYTHON" "$HERE/h200/$name.py" "$@"
}

fits() { # NAME SECONDS: is there time for it? A rehearsal is short
    local need=$2 left=$((UNTIL - SECONDS))
    [ -z "$REHEARSE" ] || need=$((need / 3))
    [ "$left" -ge "$need" ] && return 0
    say "$1 skipped: it takes about $need s, and $left s are left"
    return 1
}

perf() { # STAGE LIMIT ARGUMENTS: one pytest session, its records in a folder of the stage's; never later than --until
    local stage=$1 limit=$2 left=$((UNTIL - SECONDS - 8)) begun=$SECONDS rc
    shift 2
    [ "$limit" -le "$left" ] || limit=$left
    (
        cd "$PROJECT" || exit 2
        timeout -k 30 "$limit" "$H200_PYTHON" -m pytest -p pytest_r1perf.plugin -p no:cacheprovider --perf \
            --perf-platform "$PLATFORM" --perf-out ".r1perf/$stage" "$@"
    )
    rc=$?
    printf '{"stage": "%s", "seconds": %d, "rc": %d}\n' "$stage" $((SECONDS - begun)) $rc >>"$PROJECT/stages.jsonl"
    return $rc
}

keep() { # what came out of it so far, into $OUT: also what is there of a call that is cut short
    (cd "$H200_WORK" && tar czf "$OUT/.sessions" --exclude=__pycache__ project) && mv "$OUT/.sessions" "$OUT/sessions.tar.gz"
    find "$PROJECT/.r1perf" -name 'samples-*.jsonl' -exec cat {} + >"$OUT/records.jsonl" 2>/dev/null
    cat "$PROJECT"/baselines/*/*.yaml >"$OUT/baselines.yaml" 2>/dev/null
    piece summary "$PROJECT" >"$OUT/summary.txt" 2>&1
}

numbers() { piece settings "$1"; } # a list of loads, or a number, of this scale

ids() { # TEST LOADS: pytest's arguments for these loads
    local n
    for n in $(numbers "$2"); do echo "test_h200.py::$1[$n]"; done
}

# -- stages ------------------------------------------------------------------------------------------------------------

setup() {
    if [ -n "${H200_STATE:-}" ] && [ ! -d "$PROJECT/baselines" ]; then
        tar xzf "$H200_STATE" -C "$H200_WORK"
    fi
    if [ -n "$H200_SITE" ] && [ ! -e "$H200_SITE/.compiled" ]; then # or each process compiles what the first could not keep
        "$H200_SGLANG" -m compileall -q -j 0 "$H200_SITE" >/dev/null 2>&1
        touch "$H200_SITE/.compiled"
    fi
    if [ -z "$REHEARSE" ] && [ -z "${R1_SLICE:-}" ]; then
        piece make_slice "$H200_WORK/models" || return 1
    fi
    piece project "$PROJECT" || return 1
    piece check | tee "$OUT/machine.txt"
    # In the background: the next stage's first process only fills kernel caches, and is thrown away.
    piece sample "$PROJECT" >"$PROJECT/sample.log" 2>&1 &
    echo $! >"$H200_WORK/sampling.pid"
}

sampled() { # the workloads are known: or pytest samples them itself, one after the other
    local waited=0 pid
    pid=$(cat "$H200_WORK/sampling.pid" 2>/dev/null) || return 0
    while kill -0 "$pid" 2>/dev/null && [ $waited -lt 120 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    rm -f "$H200_WORK/sampling.pid"
    [ $waited -eq 0 ] || say "waited $waited s for the workloads to be sampled"
}

cold() { perf cold 330 test_h200.py::test_offline --perf-rounds 1 --perf-update-new; }

engine() {
    sampled
    perf engine 420 $(ids test_load loads) --perf-rounds 1 --perf-update-new --perf-detect 0.3
}

gate() {
    sampled
    perf gate 150 $(ids test_load gate_loads) --perf-rounds 1 --perf-detect 0.3
    echo "exit status $? (0: nothing fails)"
    fits "the injected regression" 90 || return 0
    perf slow 150 $(ids test_load slow_loads) --perf-rounds 1 --perf-detect 0.3 -o perf_data=slow.yaml
    echo "exit status $? (1: the cap on running requests is REGRESSED)"
}

overhead() { # as many processes as there is time for, on from where the last call ended
    local rc=0
    while fits "another process" 75; do
        piece pairs "$PROJECT" $((UNTIL - SECONDS - 8)) || rc=1
        keep
        [ "$(wc -l <"$PROJECT/pairs.jsonl")" -lt "$(numbers pair_processes)" ] || break
    done
    return $rc
}

validity() {
    piece killed "$PROJECT" 90
    fits "a start-up that hangs" 100 || return 0
    perf hang 200 test_h200.py::test_hang --perf-rounds 1
    echo "exit status $? (1: HANG)"
    piece killed "$PROJECT" --left
}

noise() {
    sampled
    perf noise 240 $(ids test_load noise_loads) --perf-rounds 1 --perf-windows "$(numbers noise_windows)" --perf-discard 1
}

engines() { # each round is an engine's start of its own; judged against the baseline, where there is one
    sampled
    perf engines 570 $(ids test_load noise_loads) --perf-rounds "$(numbers engine_rounds)" --perf-update-new \
        --perf-budget $((UNTIL - SECONDS - 90))s --perf-detect 0.3
}

ablation() {
    sampled
    perf ablation 240 test_h200.py::test_ablation --perf-rounds 1
}

versions() {
    local side
    [ -n "${H200_SITE_NEW:-}" ] || { echo "versions: H200_SITE_NEW is not set"; return 1; }
    for side in "$H200_SITE:old" "$H200_SITE_NEW:new"; do # an environment is a Python: one that knows its folder
        printf '#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' "${side%:*}" "$H200_SGLANG" >"$H200_WORK/python-${side##*:}"
        chmod +x "$H200_WORK/python-${side##*:}"
    done
    perf versions 520 test_h200.py::test_offline --perf-rounds 2 --perf-no-outputs -o perf_data=versions.yaml \
        --sglang "old=$H200_WORK/python-old" --sglang "new=$H200_WORK/python-new"
}

two() {
    local PLATFORM
    PLATFORM=$(numbers two_platform)
    sampled
    perf plan 60 test_two.py::test_tp2 --perf-plan -o perf_data=two.yaml >"$PROJECT/two-plan.txt" 2>&1
    # With it SGLang sets up NVLink multicast, and where a host forbids that tensor parallel hangs (seen with 0.5.11).
    if [ -z "$REHEARSE" ] && ! grep -q -- --enforce-disable-flashinfer-allreduce-fusion "$PROJECT/two-plan.txt"; then
        echo "two: the all-reduce fusion would be on; not run"
        return 1
    fi
    perf two 520 test_two.py --perf-rounds 1 -o perf_data=two.yaml
}

# -- the run -----------------------------------------------------------------------------------------------------------

declare -A SECONDS_OF=([setup]=50 [cold]=180 [engine]=215 [gate]=190 [overhead]=75 [validity]=150 [noise]=150
    [engines]=330 [ablation]=120 [versions]=420 [two]=520)
PLATFORM=$(numbers platform)

main() {
    local stage rc failed=0
    for stage in "${STAGES[@]}"; do
        if [ -z "${SECONDS_OF[$stage]:-}" ]; then
            echo "h200.sh: stage '$stage' is not known (known: ${!SECONDS_OF[*]})"
            failed=2
            continue
        fi
        fits "$stage" "${SECONDS_OF[$stage]}" || continue
        say "$stage"
        "$stage"
        rc=$?
        [ $rc -eq 0 ] || { say "$stage ended with status $rc"; failed=1; }
        keep
    done
    sampled
    keep
    say "all over"
    cat "$OUT/summary.txt"
    return $failed
}

main 2>&1 | tee -a "$OUT/report.txt"
exit "${PIPESTATUS[0]}"
