"""The HTTP server: OpenAI's routes and llama-server's, in front of a `contract.service.Service`."""
