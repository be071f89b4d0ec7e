"""LoRA adapters: small matrices that change what the matrices of a model compute."""
