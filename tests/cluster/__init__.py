"""Tests against a real sshd, a real Slurm with two nodes, real containers and real mpiexecs, all on this host."""
