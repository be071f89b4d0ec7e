"""Keeps worker processes and speaks to them; it computes nothing and loads no arrays.

from corral.router.supervisor import supervise
with supervise(WorkerSpec(model="model.gguf")) as worker:      # a contract.service.Service
    worker.wait_until_ready(60.0)
    worker.submit(request, deliver)
"""
