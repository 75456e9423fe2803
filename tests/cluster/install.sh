#!/usr/bin/env bash
# Installs what the tests in tests/cluster need: sshd, Slurm, podman with runc, Open MPI, MPICH (Debian and Ubuntu).
#
#     bash tests/cluster/install.sh
#
# Needs root, or sudo that asks for no password. No service is started or enabled by it: the tests start their own
# daemons on ports of the loopback interface and stop them again. Can be started again at any time: what is there
# already is not installed twice. Asks the package index again only when a package is missing.
set -euo pipefail

declare -A packages=(
  [ssh]=openssh-client [/usr/sbin/sshd]=openssh-server
  [srun]=slurm-client [slurmctld]=slurmctld [slurmd]=slurmd [munged]=munge
  [podman]=podman [runc]=runc [/usr/bin/busybox]=busybox-static
  [mpiexec.openmpi]=openmpi-bin [mpiexec.mpich]=mpich
)

missing=()
for program in "${!packages[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "cluster tests: everything is installed"
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "cluster tests: there is no apt-get here; install by hand: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi

# Debian starts a daemon when its package is installed; this file tells it not to.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
  "${as_root[@]}" chmod 755 $policy
  trap '"${as_root[@]}" rm -f $policy' EXIT
fi

echo "cluster tests: apt-get install ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
