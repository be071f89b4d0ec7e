"""The engine: loads one model and repeats schedule, run, sample, emit."""
