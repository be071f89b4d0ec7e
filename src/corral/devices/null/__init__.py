"""The null device: plans and counts like any other, holds no memory and computes nothing."""
