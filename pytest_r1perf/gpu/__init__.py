"""What NVIDIA's management library (NVML) tells of the GPUs: who holds them, and what slowed them down."""
