#!/bin/sh
#PBS -N $name
#PBS -l select=$select
#PBS -l place=scatter:excl
#PBS -l walltime=$walltime
#PBS -j oe$extra
# Whole nodes, each of them once, and nobody else on them: a neighbour changes the numbers.
cd "$${PBS_O_WORKDIR:?}" || exit
exec $command
