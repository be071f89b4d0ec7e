"""The process that holds one model and answers over a socket; `python -m corral.worker`."""
