"""What a worker can see of torch: cache layers, compilers, the implementation that ran. Children only."""
