#!/usr/bin/env bash
# Tell people of nights:  scripts/tell.sh NIGHTS   (every report.json below it, as the artifacts of a night are)
#
# GitHub issues where GITHUB_TOKEN and GITHUB_REPOSITORY are set, the webhook where R1PERF_WEBHOOK_URL is. What cannot be
# told is a line, and no failure: the night's own status says how it was. R1PERF_BIN: as for nightly.sh.
set -euo pipefail

if [ $# -ne 1 ] || [ ! -d "$1" ]; then
    echo "tell.sh: give the folder of the nights" >&2
    exit 2
fi
BIN=${R1PERF_BIN:-.venv/bin}
KINDS=()
[ -z "${GITHUB_TOKEN:-}" ] || [ -z "${GITHUB_REPOSITORY:-}" ] || KINDS+=(github-issue)
[ -z "${R1PERF_WEBHOOK_URL:-}" ] || KINDS+=(webhook)
[ ${#KINDS[@]} -gt 0 ] || echo "tell.sh: neither GITHUB_TOKEN with GITHUB_REPOSITORY nor R1PERF_WEBHOOK_URL is set: nobody is told"
while IFS= read -r reports; do
    if [ ! -s "$reports/report.json" ]; then
        echo "tell.sh: $reports: $(head -n 1 "$reports/outcome.txt" 2>/dev/null || echo 'no outcome')"
        continue
    fi
    for kind in "${KINDS[@]}"; do
        timeout 300 "$BIN/r1perf" notify "$kind" "$reports/report.json" || echo "tell.sh: $kind: status $?"
    done
done < <(find "$1" -type d -name reports | sort)
