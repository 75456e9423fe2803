#!/usr/bin/env bash
# The trend over all nights, and the reports of the latest ones with it:  scripts/trend.sh HISTORY NIGHTS
#
# HISTORY is what scripts/history.sh laid out; below NIGHTS lie folders with out/ (sessions) and reports/, as the artifacts
# of a night are. Each reports/ gets trend.txt, and report.html and report.md anew. R1PERF_BIN: as for nightly.sh.
set -euo pipefail

if [ $# -ne 2 ] || [ ! -d "$1" ] || [ ! -d "$2" ]; then
    echo "trend.sh: give the history's folder and that of the nights" >&2
    exit 2
fi
BIN=${R1PERF_BIN:-.venv/bin}
STATUS=0
while IFS= read -r reports; do
    out=$(dirname "$reports")/out
    session=$(find "$out" -mindepth 2 -maxdepth 2 -name 'samples-*.jsonl' -printf '%h\n' 2>/dev/null | sort | tail -n 1)
    if [ -z "$session" ]; then
        echo "trend.sh: $reports: nothing was measured"
        continue
    fi
    for night in "$1"/*/; do # the nights before, as sessions beside this one
        [ -e "$out/$(basename "$night")" ] || cp -r "$night" "$out/"
    done
    "$BIN/r1perf" trend "$out" >"$reports/trend.txt" || STATUS=1
    # Of a session that was cut short the record has no verdicts: what the night itself wrote says more.
    if grep -qs '"kind": "end"' "$session"/samples-*.jsonl || [ ! -s "$reports/report.md" ]; then
        "$BIN/r1perf" report "$session" --html "$reports/report.html" --markdown "$reports/report.md" || STATUS=1
    fi
    if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then head -c 400000 "$reports/report.md" >>"$GITHUB_STEP_SUMMARY" || true; fi
done < <(find "$2" -type d -name reports | sort)
exit $STATUS
