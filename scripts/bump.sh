#!/usr/bin/env bash
# Gate an SGLang bump: two environments, measured in turn and compared with each other; no baseline is needed.
#
#   scripts/bump.sh 0.5.20 0.5.23                 # the pinned one is the default of the first
#   scripts/bump.sh 0.5.23
#   scripts/bump.sh /opt/sglang-0.5.20 /opt/mine  # environments' folders, or image:NAME
#   scripts/bump.sh 0.5.23 -- --perf-tolerance 0.03      # what follows -- goes to pytest
#
# Green means: the new one is no slower in any cell, and its greedy answers are the same (docs/bump.md). The pull request
# is another command, for it needs no GPU and other rights: scripts/propose.sh VERSION REPORTS
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

SIDES=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        -*) mistake "option '$1' is not known: pytest's follow after --" ;;
        *) SIDES+=("$1") ;;
    esac
    shift
done
settings
case ${#SIDES[@]} in
    1)
        pinned
        SIDES=("$PINNED" "${SIDES[0]}")
        ;;
    2) ;;
    *) mistake "give the new release, or the old and the new one, e.g. scripts/bump.sh 0.5.20 0.5.23" ;;
esac
for side in "${SIDES[@]}"; do
    case $side in /* | ./* | image:*) ;; *) version_of release "$side" ;; esac
done
[ "${SIDES[0]}" != "${SIDES[1]}" ] || mistake "both sides are ${SIDES[0]}: there is nothing to compare"
begin
say "gate of a bump: ${SIDES[0]} -> ${SIDES[1]}: $R1PERF_TOPOLOGY on $R1PERF_PLATFORM"
PLACES=()
for side in "${SIDES[@]}"; do
    case $side in
        /* | ./* | image:*) ENVIRONMENT=$side ;;
        *) environment "$side" || broke "SGLang $side has no environment, and none could be made in $ENVIRONMENT." "$R1PERF_REPORTS/output.txt" ;;
    esac
    ready --sglang "$ENVIRONMENT"
    PLACES+=("$ENVIRONMENT")
done
measure --sglang "old=${PLACES[0]}" --sglang "new=${PLACES[1]}" "$@"
