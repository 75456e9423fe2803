#!/usr/bin/env bash
# Open the pull request of a bump, or update it:  scripts/propose.sh VERSION REPORTS
#
# REPORTS is the folder that scripts/bump.sh wrote. The change is one line of scripts/sglang.version, on the branch
# sglang-bump/VERSION-TOPOLOGY; the verdict is in the text. Ready is only what is green, on tp8, and against the pinned
# release; the rest is a draft. A branch to which somebody else pushed is left as it is, and only the text is new. Needs
# git, `gh` and its GH_TOKEN (contents and pull requests: write), and no GPU.
#
#   BUMP_OLD          the release that the gate compared with (default: the pinned one)
#   R1PERF_TOPOLOGY   what the gate measured (default: tp8)
#   PROPOSE_BASE      the branch to merge into (default: main)
set -euo pipefail

VERSION=${1:-} REPORTS=${2:-} TOPOLOGY=${R1PERF_TOPOLOGY:-tp8}
DECIDES=tp8 # the topology of every night
FORM='^[0-9]+(\.[0-9]+)+(rc[0-9]+)?(\.?post[0-9]+)?$'
mistake() { echo "propose.sh: $*" >&2; exit 2; }
if ! [[ $VERSION =~ $FORM ]] || [ -z "$REPORTS" ]; then
    mistake "give a release and the folder of its reports, e.g. scripts/propose.sh 0.5.23 reports"
fi
[[ $TOPOLOGY =~ ^[a-z0-9][a-z0-9-]*(,[a-z0-9][a-z0-9-]*)*$ ]] || mistake "R1PERF_TOPOLOGY is '$TOPOLOGY': give topologies, e.g. tp8"
OUTCOME=$(head -n 1 "$REPORTS/outcome.txt" 2>/dev/null) || OUTCOME="broken: the gate left no outcome"
BASE=${PROPOSE_BASE:-main}
BRANCH=sglang-bump/$VERSION-$TOPOLOGY
cd "$(git rev-parse --show-toplevel)"
PIN=scripts/sglang.version
PINNED=$(git show "HEAD:$PIN")
OLD=${BUMP_OLD:-$PINNED}
[[ $OLD =~ $FORM ]] || mistake "BUMP_OLD is '$OLD', which is no release, e.g. 0.5.20"
[ "$PINNED" != "$VERSION" ] || { echo "propose.sh: $PIN holds $VERSION already"; exit 0; }

AUTHOR=r1perf@localhost
# The branch is made anew each time, so that its last commit is ours unless somebody else pushed.
HEAD_THERE=$(git ls-remote origin "refs/heads/$BRANCH") # fails where the remote does not answer
OTHERS=
if [ -n "$HEAD_THERE" ]; then
    git fetch --quiet origin "refs/heads/$BRANCH"
    HEAD_THERE=$(git rev-parse FETCH_HEAD)
    WHO=$(git show --no-patch --format='%ae %ce' "$HEAD_THERE")
    [ "$WHO" = "$AUTHOR $AUTHOR" ] || OTHERS=${HEAD_THERE:0:12}
fi

WHY=() # why it is not ready although green
[ "$OLD" = "$PINNED" ] ||
    WHY+=("The gate compared with $OLD, and $PINNED is pinned: the step from $PINNED to $VERSION was not gated.")
[ "$TOPOLOGY" = "$DECIDES" ] || WHY+=("This was measured on $TOPOLOGY, and $DECIDES decides.")
[ -z "$OTHERS" ] ||
    WHY+=("The branch has commits of others (up to $OTHERS): they were not gated, and nothing was pushed over them.")
READY=
case $OUTCOME in green:*) [ ${#WHY[@]} -gt 0 ] || READY=yes ;; esac

BODY=$(mktemp)
trap 'rm -f "$BODY"' EXIT
{
    printf 'SGLang %s -> %s on %s: **%s**\n\n' "$OLD" "$VERSION" "$TOPOLOGY" "${OUTCOME%%:*}"
    [ ${#WHY[@]} -eq 0 ] || printf '**Not ready to merge:** %s\n\n' "${WHY[*]}"
    printf '%s\n\nGated by: R1PERF_TOPOLOGY=%s scripts/bump.sh %s %s\n' "$OUTCOME" "$TOPOLOGY" "$OLD" "$VERSION"
    [ -z "${PROPOSE_RUN_URL:-}" ] || printf 'Reports and logs: %s\n' "$PROPOSE_RUN_URL"
    printf '\n'
    head -c 60000 "$REPORTS/report.md" 2>/dev/null || printf 'There is no report.\n' # GitHub's limit is 65,536 characters
} >"$BODY"

if [ -n "$OTHERS" ]; then
    echo "propose.sh: $BRANCH has commits of others (up to $OTHERS): it is not pushed to, only the text is new" >&2
else
    git switch --quiet --force-create "$BRANCH" HEAD
    printf '%s\n' "$VERSION" >"$PIN"
    # By variables, since GIT_AUTHOR_EMAIL and the like would win over -c user.email.
    GIT_AUTHOR_NAME=r1perf GIT_AUTHOR_EMAIL=$AUTHOR GIT_COMMITTER_NAME=r1perf GIT_COMMITTER_EMAIL=$AUTHOR \
        git commit --quiet --message "chore: SGLang $PINNED -> $VERSION" -- "$PIN"
    # The lease: whoever pushed since the look above is not overwritten either.
    git push --quiet --force-with-lease="refs/heads/$BRANCH:$HEAD_THERE" origin "HEAD:refs/heads/$BRANCH" ||
        { echo "propose.sh: $BRANCH could not be pushed; if it moved meanwhile, run the same again" >&2; exit 1; }
fi

TITLE="SGLang $OLD -> $VERSION on $TOPOLOGY: ${OUTCOME%%:*}"
# --head compares the name alone: a fork's branch may be called the same.
NUMBER=$(gh pr list --head "$BRANCH" --base "$BASE" --state open --limit 1000 --json number,isCrossRepository \
    --jq 'map(select(.isCrossRepository | not)) | .[0].number // empty')
if [ -n "$NUMBER" ]; then
    gh pr edit "$NUMBER" --title "$TITLE" --body-file "$BODY"
    if [ -n "$READY" ]; then gh pr ready "$NUMBER"; else gh pr ready "$NUMBER" --undo; fi
else
    DRAFT=(--draft)
    [ -z "$READY" ] || DRAFT=()
    gh pr create --base "$BASE" --head "$BRANCH" --title "$TITLE" --body-file "$BODY" "${DRAFT[@]}"
fi
