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
    find "$out" -mindepth 2 -maxdepth 2 -name 'samples-*.jsonl' 2>/dev/null | grep -q . || {
        echo "trend.sh: $reports: nothing was measured"
        continue
    }
    cp -rn "$1"/. "$out"/ # the nights before, as sessions beside this one
    rm -rf "$out/.git"
    "$BIN/r1perf" trend "$out" >"$reports/trend.txt" || STATUS=1
    "$BIN/r1perf" report "$out" --html "$reports/report.html" --markdown "$reports/report.md" || STATUS=1
    if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then head -c 400000 "$reports/report.md" >>"$GITHUB_STEP_SUMMARY" || true; fi
done < <(find "$2" -type d -name reports | sort)
exit $STATUS
