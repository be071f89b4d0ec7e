"""The CPU's kernels, written in `simd/`: a record in, bytes out. They know no graph."""
