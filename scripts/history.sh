#!/usr/bin/env bash
# Keep the records of nights in a branch, and lay it out for the trend:  scripts/history.sh FOLDER SESSIONS...
#
#   scripts/history.sh history out        # then: r1perf trend history
#
# FOLDER becomes a working copy of the branch; the records (samples-*.jsonl, nothing else) of every session below SESSIONS
# are added, committed and pushed. A branch that moved meanwhile is fetched and the same is done again. Without SESSIONS
# the branch is only fetched. The newest $HISTORY_NIGHTS sessions stay in the branch's tree, older ones in git's history.
#
#   HISTORY_REMOTE   what is cloned and pushed to (default: this checkout's origin)
#   HISTORY_BRANCH   default: r1perf-history
#   HISTORY_NIGHTS   default: 400
set -euo pipefail

[ $# -ge 1 ] || { echo "history.sh: give a folder for the branch, and output directories" >&2; exit 2; }
FOLDER=$1
shift
BRANCH=${HISTORY_BRANCH:-r1perf-history}
NIGHTS=${HISTORY_NIGHTS:-400}
REMOTE=${HISTORY_REMOTE:-$(git remote get-url origin)}
[[ $NIGHTS =~ ^[1-9][0-9]*$ ]] || { echo "history.sh: HISTORY_NIGHTS is '$NIGHTS', not a number above 0" >&2; exit 2; }
[ ! -e "$FOLDER" ] || { echo "history.sh: $FOLDER is there: name a new folder" >&2; exit 2; }
git check-ref-format --branch "$BRANCH" >/dev/null || { echo "history.sh: HISTORY_BRANCH '$BRANCH' is no branch's name" >&2; exit 2; }

git init --quiet --initial-branch "$BRANCH" "$FOLDER"
in_folder() { git -C "$FOLDER" -c user.name=r1perf -c user.email=r1perf@localhost "$@"; }
in_folder remote add origin "$REMOTE"

latest() { # the branch as it is now; none yet is an empty one
    local there
    there=$(in_folder ls-remote origin "refs/heads/$BRANCH") # fails where the remote does not answer: not an empty history
    [ -n "$there" ] || return 0
    in_folder fetch --quiet --depth 1 origin "refs/heads/$BRANCH"
    in_folder reset --quiet --hard FETCH_HEAD
}

add() { # the records of these output directories
    local out record session
    for out in "$@"; do
        while IFS= read -r -d '' record; do
            session=$(basename "$(dirname "$record")")
            mkdir -p "$FOLDER/$session"
            cp -- "$record" "$FOLDER/$session/"
        done < <(find "$out" -type f -path '*/samples-*.jsonl' -print0)
    done
    # A session's name begins with its time.
    find "$FOLDER" -mindepth 1 -maxdepth 1 -type d ! -name .git -printf '%f\0' | sort -z | head -z -n "-$NIGHTS" |
        while IFS= read -r -d '' session; do rm -rf -- "${FOLDER:?}/$session"; done
}

for try in 1 2 3 4 5; do
    latest
    [ $# -gt 0 ] || exit 0
    add "$@"
    in_folder add --all
    if in_folder diff --cached --quiet; then
        echo "history.sh: nothing new for $BRANCH"
        exit 0
    fi
    in_folder commit --quiet --message "records of $(date -u +%Y-%m-%d)"
    if in_folder push --quiet origin "HEAD:refs/heads/$BRANCH"; then
        echo "history.sh: $(find "$FOLDER" -name 'samples-*.jsonl' | wc -l) records in $BRANCH"
        exit 0
    fi
    echo "history.sh: try $try: $BRANCH could not be pushed" >&2
    sleep "$try"
done
exit 1
