#!/usr/bin/env bash
# One night: is the host ready, what would be run, the gate against the stored baselines, reports, trend.
#
#   scripts/nightly.sh                                   # tp8 on h200x8, with the SGLang of scripts/sglang.version
#   R1PERF_TOPOLOGY=pp2,tp16 R1PERF_PLATFORM=h200x16 scripts/nightly.sh
#   R1PERF_BUDGET=5h scripts/nightly.sh --perf-rounds 3:6    # further arguments go to pytest
#
# A systemd timer, cron and .github/workflows/nightly.yml run this same command (docs/gpu-runner.md).
#
#   NIGHTLY_SGLANG   an SGLang environment instead of the one of scripts/sglang.version
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage; exit 0 ;; esac
settings
pinned
begin
say "night of $(date -u +%Y-%m-%d): $R1PERF_TOPOLOGY on $R1PERF_PLATFORM, $(git rev-parse --short HEAD 2>/dev/null || echo 'no commit known')"
if [ -n "${NIGHTLY_SGLANG:-}" ]; then
    ENVIRONMENT=$NIGHTLY_SGLANG
else
    environment "$PINNED" || broke "SGLang $PINNED has no environment, and none could be made in $ENVIRONMENT." "$R1PERF_REPORTS/output.txt"
fi
ready --sglang "$ENVIRONMENT"
measure --sglang "$ENVIRONMENT" "$@"
