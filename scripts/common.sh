# shellcheck shell=bash
# What nightly.sh and bump.sh have in common: sourced by them, never started. One lock for the host, one supervised
# pytest session, reports in every case, and one exit status that says what kind of night it was.
#
# Variables that both read; all are optional:
#   R1PERF_PROJECT   folder with pytest's configuration, r1perf.yaml and baselines/ (default: this checkout)
#   R1PERF_BIN       folder with pytest and r1perf (default: .venv/bin of this checkout)
#   R1PERF_PLATFORM  platform (default: h200x8)
#   R1PERF_TOPOLOGY  one or more, NAME[,NAME] (default: tp8)
#   R1PERF_TESTS     what pytest collects (default: perf_tests)
#   R1PERF_OUT       output directory with the sessions (default: .r1perf)
#   R1PERF_REPORTS   folder of this run's reports (default: $R1PERF_OUT/reports/TIME)
#   R1PERF_BUDGET    start no further round after it, e.g. 5h (default: none)
#   R1PERF_LIMIT     end pytest after it, e.g. 6h, whatever it does (default: 12h)
#   R1PERF_LOCK      file of the host's lock (default: /tmp/r1perf-host.lock); R1PERF_WAIT: seconds to wait for it (0)
#   R1PERF_HISTORY   one more folder with records of earlier nights, for the trend
#   R1PERF_DOCTOR    further arguments of `r1perf doctor`, separated by blanks (two nodes: --elsewhere)
#   R1PERF_NOTIFY    kinds of `r1perf notify` that are told at the end, separated by blanks, e.g. "webhook"
#   SGLANG_PIN       file that holds the pinned release (default: scripts/sglang.version)
#   SGLANG_TEMPLATE  where the environment of a release is (default: /opt/sglang-{version}; platform cpu: its rig);
#                    image:NAME:v{version} will do
#   SGLANG_MAKE      makes a missing one (default: scripts/sglang_env.sh {version} {path}; cpu: r1perf rig install)
#
# Exit status of both:
#   0      measured, decided, nothing worse
#   1      a verdict fails: REGRESSED, OUTPUTS CHANGED, XPASS, and what could not be decided (never green)
#   2      a mistake in the call: nothing was run
#   3      the host or the runs broke (doctor, no environment, INFRA, CRASH, OOM, HANG, CONFIG, INVALID), and nothing is known to be worse
#   4      another run of these scripts has this host
#   5      pytest came to no end, selected no test, or a report could not be written
#   128+n  ended by signal n

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(dirname "$HERE")
PROGRAM=$(basename "$0")
CHILD=
ENDED_BY=
TEE=

say() { printf '\n== %s  %s\n' "$(date -u +%H:%M:%S)" "$*"; }

mistake() { # a mistake in the call: nothing has been begun
    echo "$PROGRAM: $*" >&2
    exit 2
}

usage() { # the comment at the head of the script
    sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
    sed -n '/^# Variables/,/^$/p' "$HERE/common.sh" | sed 's/^# \{0,1\}//'
}

fits() { # NAME VALUE PATTERN EXAMPLE: what comes from outside has a form, or nothing is run
    [[ $2 =~ ^($3)$ ]] || mistake "$1 is '$2', which is not of the form $4"
}

settings() { # defaults, and what is checked before anything is begun
    SGLANG_PIN=$(realpath -m "${SGLANG_PIN:-$HERE/sglang.version}")
    R1PERF_BIN=$(realpath -ms "${R1PERF_BIN:-$REPO/.venv/bin}")
    R1PERF_PROJECT=${R1PERF_PROJECT:-$REPO}
    cd "$R1PERF_PROJECT" || mistake "R1PERF_PROJECT '$R1PERF_PROJECT' is no folder"
    R1PERF_PLATFORM=${R1PERF_PLATFORM:-h200x8}
    R1PERF_TOPOLOGY=${R1PERF_TOPOLOGY:-tp8}
    R1PERF_TESTS=${R1PERF_TESTS:-perf_tests}
    R1PERF_OUT=${R1PERF_OUT:-.r1perf}
    R1PERF_REPORTS=${R1PERF_REPORTS:-$R1PERF_OUT/reports/$(date -u +%Y%m%d.%H%M%S)}
    R1PERF_BUDGET=${R1PERF_BUDGET:-}
    R1PERF_LIMIT=${R1PERF_LIMIT:-12h}
    R1PERF_LOCK=${R1PERF_LOCK:-/tmp/r1perf-host.lock}
    R1PERF_WAIT=${R1PERF_WAIT:-0}
    fits R1PERF_PLATFORM "$R1PERF_PLATFORM" '[A-Za-z0-9][A-Za-z0-9._-]*' h200x8
    fits R1PERF_TOPOLOGY "$R1PERF_TOPOLOGY" '[a-z0-9][a-z0-9-]*(,[a-z0-9][a-z0-9-]*)*' 'tp8 or pp2,tp16'
    fits R1PERF_BUDGET "$R1PERF_BUDGET" '([0-9]+[smh])?' 5h
    fits R1PERF_LIMIT "$R1PERF_LIMIT" '[0-9]+[smh]' 6h
    fits R1PERF_WAIT "$R1PERF_WAIT" '[0-9]+' 'a number of seconds'
    if [ "$R1PERF_PLATFORM" = cpu ]; then
        SGLANG_TEMPLATE=${SGLANG_TEMPLATE:-${R1PERF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-r1perf}/rig/sglang-{version\}}
        SGLANG_MAKE=${SGLANG_MAKE:-$R1PERF_BIN/r1perf rig install --sglang-version {version\}}
    else
        SGLANG_TEMPLATE=${SGLANG_TEMPLATE:-/opt/sglang-{version\}}
        SGLANG_MAKE=${SGLANG_MAKE:-bash $HERE/sglang_env.sh {version\} {path\}}
    fi
    [ -x "$R1PERF_BIN/r1perf" ] || mistake "there is no r1perf in '$R1PERF_BIN': python3 -m venv .venv && .venv/bin/pip install -e '.[gpu,html]', or set R1PERF_BIN"
    mkdir -p "$R1PERF_OUT" "$R1PERF_REPORTS" || mistake "R1PERF_REPORTS '$R1PERF_REPORTS' cannot be made: name a folder that can be written"
    R1PERF_OUT=$(cd "$R1PERF_OUT" && pwd)
    R1PERF_REPORTS=$(cd "$R1PERF_REPORTS" && pwd)
    [ -w "$R1PERF_REPORTS" ] || mistake "R1PERF_REPORTS '$R1PERF_REPORTS' cannot be written"
}

version_of() { # NAME VALUE: a release, as it may stand in a path and on a command line
    fits "$1" "$2" '[0-9]+(\.[0-9]+)+(rc[0-9]+)?(\.?post[0-9]+)?' 0.5.20
}

pinned() { # sets PINNED
    PINNED=$(cat "$SGLANG_PIN" 2>/dev/null) || mistake "SGLANG_PIN '$SGLANG_PIN' has no release: write one into it, e.g. 0.5.20"
    version_of "$SGLANG_PIN" "$PINNED"
}

take_lock() { # one run of these scripts a host; the kernel gives it back whoever dies, once pytest is dead, too
    [ -e "$R1PERF_LOCK" ] || (umask 0111 && : >>"$R1PERF_LOCK") || mistake "R1PERF_LOCK '$R1PERF_LOCK' cannot be made"
    exec 9<"$R1PERF_LOCK" || mistake "R1PERF_LOCK '$R1PERF_LOCK' cannot be opened"
    if ! flock --wait "$R1PERF_WAIT" 9; then
        echo "$PROGRAM: another run has this host (lock $R1PERF_LOCK, waited $R1PERF_WAIT s): nothing was measured" >&2
        exit 4
    fi
}

on_signal() { # pytest ends its processes and writes its record at SIGTERM; it is waited for
    ENDED_BY=$1
    [ -z "$CHILD" ] || kill -TERM "$CHILD" 2>/dev/null || true
}

begin() { # signals, lock, and everything that is printed into the reports, too
    trap 'on_signal 1' HUP
    trap 'on_signal 2' INT
    trap 'on_signal 15' TERM
    take_lock
    # What an earlier run left there must not be told as this one's.
    (cd "$R1PERF_REPORTS" && rm -f report.json report.html report.md perf.xml outcome.txt trend.txt doctor.txt plan.txt output.txt)
    exec > >(
        trap '' HUP INT TERM # it ends when the last line was written
        exec 9<&- tee -a "$R1PERF_REPORTS/output.txt"
    ) 2>&1
    TEE=$!
    trap 'finish $?' EXIT
}

supervised() { # LIMIT COMMAND: in a process group of its own; its status, 124 when it ran past the limit
    local status=0 limit=$1
    shift
    [ -z "$ENDED_BY" ] || return $((128 + ENDED_BY))
    set -m
    timeout --foreground --kill-after=120 "$limit" "$@" </dev/null &
    CHILD=$!
    set +m
    [ -z "$ENDED_BY" ] || kill -TERM "$CHILD" 2>/dev/null || true
    while :; do
        wait "$CHILD" && status=0 || status=$?
        kill -0 "$CHILD" 2>/dev/null || break # a signal of ours ended the wait, not the command
    done
    CHILD=
    return $status
}

environment() { # VERSION: sets ENVIRONMENT to what --sglang takes, and makes it where there is a way and none is there
    local made word words
    ENVIRONMENT=${SGLANG_TEMPLATE//\{version\}/$1}
    case $ENVIRONMENT in image:*) return 0 ;; esac
    [ ! -x "$ENVIRONMENT/bin/python" ] || [ -e "$ENVIRONMENT.being-made" ] || return 0
    say "SGLang $1 is made in $ENVIRONMENT"
    read -ra words <<<"$SGLANG_MAKE"
    made=()
    for word in "${words[@]}"; do
        word=${word//\{version\}/$1}
        made+=("${word//\{path\}/$ENVIRONMENT}")
    done
    supervised 3h "${made[@]}" || return 1
    [ -x "$ENVIRONMENT/bin/python" ]
}

fenced() { # BYTES FILE: the end of a file as a code block that nothing in it can close
    printf '\n~~~text\n'
    tail -c "$1" "$2" | tr -d '~\000-\010\013-\037'
    printf '\n~~~\n'
}

broke() { # SENTENCE [FILE]: nothing was measured; the report says so, and that is red
    {
        printf '## The run broke before anything was measured\n\n%s\n' "$1"
        [ -z "${2:-}" ] || fenced 20000 "$2"
    } >"$R1PERF_REPORTS/report.md"
    OUTCOME="broken: $1"
    say "$1"
    exit 3
}

ready() { # [ARGUMENTS of doctor]: the host's own check; all it prints is kept
    local status=0
    local -a more
    read -ra more <<<"${R1PERF_DOCTOR:-}"
    say "r1perf doctor"
    supervised 15m "$R1PERF_BIN/r1perf" doctor --platform "$R1PERF_PLATFORM" --out "$R1PERF_OUT" "${more[@]}" "$@" >"$R1PERF_REPORTS/doctor.txt" 2>&1 || status=$?
    cat "$R1PERF_REPORTS/doctor.txt"
    [ -z "$ENDED_BY" ] || exit $((128 + ENDED_BY))
    [ $status -eq 0 ] || broke "The host is not ready to measure ($R1PERF_PLATFORM): r1perf doctor ended with status $status." "$R1PERF_REPORTS/doctor.txt"
}

measure() { # PYTEST ARGUMENTS: the session and its reports; exits with the status above
    local status=0 source since
    local -a selected=(--topology "$R1PERF_TOPOLOGY" --perf-platform "$R1PERF_PLATFORM") budget=()
    [ -z "$R1PERF_BUDGET" ] || budget=(--perf-budget "$R1PERF_BUDGET")
    [ "$PROGRAM" != nightly.sh ] || {
        say "r1perf plan"
        supervised 15m "$R1PERF_BIN/r1perf" plan "$R1PERF_TESTS" "${selected[@]}" "$@" >"$R1PERF_REPORTS/plan.txt" 2>&1 ||
            say "a test is refused, or the plan could not be made: see plan.txt"
    }
    since=$R1PERF_REPORTS/.begun
    : >"$since"
    say "pytest -m perf ${selected[*]} $*"
    supervised "$R1PERF_LIMIT" "$R1PERF_BIN/pytest" "$R1PERF_TESTS" -m perf "${selected[@]}" --perf-gate "${budget[@]}" \
        -p no:cacheprovider --perf-out "$R1PERF_OUT" --perf-json "$R1PERF_REPORTS/report.json" --junitxml "$R1PERF_REPORTS/perf.xml" "$@" || status=$?
    source=$R1PERF_REPORTS/report.json
    if [ ! -s "$source" ]; then # pytest was killed: what its record has
        source=$(find "$R1PERF_OUT" -mindepth 2 -maxdepth 2 -name 'samples-*.jsonl' -newer "$since" -printf '%h\n' | sort | tail -n 1)
    fi
    rm -f "$since"
    reports "$source" "$status"
    case $status in
        0) case $OUTCOME in green:*) [ -z "$UNWRITTEN" ] || exit 5 ;; *) exit 5 ;; esac ;; # status 0 alone measures nothing
        1) case $OUTCOME in broken:*) exit 3 ;; *) exit 1 ;; esac ;;
        *) [ -z "$ENDED_BY" ] || exit $((128 + ENDED_BY)); exit 5 ;;
    esac
    exit 0
}

reports() { # SOURCE STATUS: every file that can be made of what there is
    local wanted=()
    UNWRITTEN=
    say "reports in $R1PERF_REPORTS"
    OUTCOME=$("$R1PERF_BIN/python" "$HERE/outcome.py" "$1" "$2") || OUTCOME="broken: the record cannot be read"
    say "$OUTCOME"
    [ -n "$1" ] || return 0
    [ -s "$R1PERF_REPORTS/report.json" ] || wanted=(--json "$R1PERF_REPORTS/report.json")
    "$R1PERF_BIN/r1perf" report "$1" "${wanted[@]}" --html "$R1PERF_REPORTS/report.html" \
        --markdown "$R1PERF_REPORTS/report.md" --baselines baselines || UNWRITTEN=yes # it says which, and writes the others
    "$R1PERF_BIN/r1perf" trend "$R1PERF_OUT" ${R1PERF_HISTORY:+"$R1PERF_HISTORY"} --baselines baselines \
        >"$R1PERF_REPORTS/trend.txt" 2>&1 || say "no trend: $(tail -n 1 "$R1PERF_REPORTS/trend.txt")"
}

appended() { # VARIABLE: text from standard input to the file that it names; a wrong one is a remark, nothing more
    local file=${!1:-}
    [ -n "$file" ] || { cat >/dev/null; return 0; }
    if [ -d "$file" ] || ! { cat >>"$file"; } 2>/dev/null; then
        say "$1 is '$file', which cannot be written: it is left out"
    fi
}

finish() { # STATUS: at every exit after begin: outcome and summary are there whatever happened
    local kind
    trap '' HUP INT TERM
    set +e
    : "${OUTCOME:=broken: ended with status $1 before anything was measured}"
    printf '%s\n' "$OUTCOME" >"$R1PERF_REPORTS/outcome.txt"
    [ -s "$R1PERF_REPORTS/report.md" ] || {
        printf '## %s\n\nNo report could be made; the last lines of the output:\n' "$OUTCOME"
        fenced 8000 "$R1PERF_REPORTS/output.txt"
    } >"$R1PERF_REPORTS/report.md"
    head -c 900000 "$R1PERF_REPORTS/report.md" | appended GITHUB_STEP_SUMMARY # GitHub's limit is 1 MiB
    printf 'outcome=%s\n' "${OUTCOME%%:*}" | appended GITHUB_OUTPUT
    for kind in ${R1PERF_NOTIFY:-}; do
        timeout 300 "$R1PERF_BIN/r1perf" notify "$kind" "$R1PERF_REPORTS/report.json" || say "notify $kind: status $?"
    done
    say "exit status $1: $OUTCOME"
    exec >&- 2>&-
    wait "$TEE"
    exit "$1"
}
