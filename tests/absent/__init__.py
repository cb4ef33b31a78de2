"""Builds for GPUs that are not there; each needs a CUDA build of torch, and no GPU."""
