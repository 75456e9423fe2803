#!/usr/bin/env bash
# Which bump is due: prints old=VERSION and new=VERSION, the latter empty where none is.  scripts/bump_due.sh
#
# BUMP_NEW names a release that is wanted whatever there is; without it the newest is due when it is newer than the pinned
# one and had no pull request yet for R1PERF_TOPOLOGY (default: tp8; asked of `gh`). BUMP_OLD: instead of the pinned one.
# Also appended to $GITHUB_OUTPUT.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SGLANG_PIN=${SGLANG_PIN:-$HERE/sglang.version}
OLD=${BUMP_OLD:-$(cat "$SGLANG_PIN")}
NEW=${BUMP_NEW:-}
form='^[0-9]+(\.[0-9]+)+(rc[0-9]+)?(\.?post[0-9]+)?$'
release() { # NAME VALUE
    [[ $2 =~ $form ]] || { echo "bump_due.sh: $1 is '$2', which is no release, e.g. 0.5.23" >&2; exit 2; }
}
release old "$OLD"
if [ -n "$NEW" ]; then
    release BUMP_NEW "$NEW"
else
    NEW=$("${BUMP_PYTHON:-python3}" "$HERE/new_release.py" --pin "$SGLANG_PIN")
    if [ -n "$NEW" ]; then
        release 'the newest' "$NEW"
        branch=sglang-bump/$NEW-${R1PERF_TOPOLOGY:-tp8}
        # --head compares the name alone: a fork's branch may be called the same.
        had=$(gh pr list --head "$branch" --state all --limit 1000 --json number,isCrossRepository \
            --jq 'map(select(.isCrossRepository | not)) | length')
        if [ "$had" != 0 ]; then
            echo "SGLang $NEW had its pull request ($branch)" >&2
            NEW=
        fi
    fi
fi
printf 'old=%s\nnew=%s\n' "$OLD" "$NEW"
if [ -n "${GITHUB_OUTPUT:-}" ]; then printf 'old=%s\nnew=%s\n' "$OLD" "$NEW" >>"$GITHUB_OUTPUT"; fi
