#!/usr/bin/env bash
# Open the pull request of a bump, or update it:  scripts/propose.sh VERSION REPORTS
#
# REPORTS is the folder that scripts/bump.sh wrote. The change is one line of scripts/sglang.version, on the branch
# sglang-bump/VERSION; the verdict is in the text. Whatever is not green is a draft. Needs git, `gh` and its GH_TOKEN
# (contents and pull requests: write), and no GPU. PROPOSE_BASE: the branch to merge into (default: main).
set -euo pipefail

VERSION=${1:-} REPORTS=${2:-}
if ! [[ $VERSION =~ ^[0-9]+(\.[0-9]+)+(rc[0-9]+)?(\.?post[0-9]+)?$ ]] || [ -z "$REPORTS" ]; then
    echo "propose.sh: give a release and the folder of its reports, e.g. scripts/propose.sh 0.5.23 reports" >&2
    exit 2
fi
OUTCOME=$(head -n 1 "$REPORTS/outcome.txt" 2>/dev/null) || OUTCOME="broken: the gate left no outcome"
BASE=${PROPOSE_BASE:-main}
BRANCH=sglang-bump/$VERSION
cd "$(git rev-parse --show-toplevel)"
PIN=scripts/sglang.version
OLD=$(git show "HEAD:$PIN")
[ "$OLD" != "$VERSION" ] || { echo "propose.sh: $PIN holds $VERSION already"; exit 0; }

BODY=$(mktemp)
trap 'rm -f "$BODY"' EXIT
{
    printf 'SGLang %s -> %s: **%s**\n\n' "$OLD" "$VERSION" "${OUTCOME%%:*}"
    printf '%s\n\nGated by: scripts/bump.sh %s %s\n' "$OUTCOME" "$OLD" "$VERSION"
    [ -z "${PROPOSE_RUN_URL:-}" ] || printf 'Reports and logs: %s\n' "$PROPOSE_RUN_URL"
    printf '\n'
    head -c 60000 "$REPORTS/report.md" 2>/dev/null || printf 'There is no report.\n' # GitHub's limit is 65,536 characters
} >"$BODY"

commit() { git -c user.name=r1perf -c user.email=r1perf@localhost "$@"; }
git switch --quiet --force-create "$BRANCH" HEAD
printf '%s\n' "$VERSION" >"$PIN"
commit commit --quiet --message "chore: SGLang $OLD -> $VERSION" -- "$PIN"
git push --quiet --force origin "HEAD:refs/heads/$BRANCH"

TITLE="SGLang $OLD -> $VERSION: ${OUTCOME%%:*}"
NUMBER=$(gh pr list --head "$BRANCH" --base "$BASE" --state open --json number --jq '.[0].number // empty')
if [ -n "$NUMBER" ]; then
    gh pr edit "$NUMBER" --title "$TITLE" --body-file "$BODY"
    case $OUTCOME in green:*) gh pr ready "$NUMBER" ;; *) gh pr ready "$NUMBER" --undo ;; esac
else
    DRAFT=(--draft)
    case $OUTCOME in green:*) DRAFT=() ;; esac
    gh pr create --base "$BASE" --head "$BRANCH" --title "$TITLE" --body-file "$BODY" "${DRAFT[@]}"
fi
