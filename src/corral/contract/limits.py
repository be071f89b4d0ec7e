"""The largest of everything that comes from outside, in one place."""

MAX_SEED = 2**64 - 1
MAX_TOKEN = 2**31 - 1
MAX_LOGPROBS = 20
MAX_WINDOW = 65_536
MAX_LOGIT_BIASES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BREAKERS = 16
MAX_MESSAGES = 16_384
MAX_TEXT_CHARACTERS = 2**28
MAX_PROMPT_TOKENS = 2**24
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
MAX_NAME_CHARACTERS = 256
MAX_SCHEMA_CHARACTERS = 2**18
"""Of a schema, a grammar or a pattern that an answer must fit."""
