#!/usr/bin/env bash
# A virtual environment with one SGLang release for GPUs:  scripts/sglang_env.sh 0.5.23 /opt/sglang-0.5.23
#
# One that was interrupted is made anew: a file beside it says that it is being made. SGLANG_PYTHON is the Python it is
# made with (default: python3), SGLANG_PIP_ARGS are further arguments of pip, separated by blanks.
set -euo pipefail

VERSION=${1:-} PLACE=${2:-}
if ! [[ $VERSION =~ ^[0-9]+(\.[0-9]+)+(rc[0-9]+)?(\.?post[0-9]+)?$ ]] || [ -z "$PLACE" ]; then
    echo "sglang_env.sh: give a release and a folder, e.g. scripts/sglang_env.sh 0.5.23 /opt/sglang-0.5.23" >&2
    exit 2
fi
BEGUN=$PLACE.being-made
[ ! -x "$PLACE/bin/python" ] || [ -e "$BEGUN" ] || { echo "$PLACE is there"; exit 0; }
mkdir -p "$(dirname "$PLACE")"
[ ! -e "$PLACE" ] || [ -e "$BEGUN" ] || { echo "sglang_env.sh: $PLACE is there and is no virtual environment" >&2; exit 1; }
: >"$BEGUN"
rm -rf "$PLACE"
"${SGLANG_PYTHON:-python3}" -m venv "$PLACE"
read -ra PIP_ARGS <<<"${SGLANG_PIP_ARGS:-}"
"$PLACE/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar=off "${PIP_ARGS[@]}" "sglang[all]==$VERSION"
HELD=$("$PLACE/bin/python" -c 'from importlib.metadata import version; print(version("sglang"))')
[ "$HELD" = "$VERSION" ] || { echo "sglang_env.sh: $PLACE holds SGLang $HELD, not $VERSION" >&2; exit 1; }
rm -f "$BEGUN"
