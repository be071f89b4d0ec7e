"""Texts of tokens whose role old files do not state, so that it is read from the text."""

END_OF_GENERATION = (
    "<|eot_id|>",  # Llama 3
    "<|im_end|>",  # ChatML
    "<|end|>",  # Phi 3
    "<|return|>",  # gpt-oss
    "<|call|>",  # gpt-oss
    "<|flush|>",  # Solar
    "<|calls|>",  # Solar
    "<end_of_turn>",  # Gemma
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",  # Kimi
    "[EOS]",  # Kimi
    "<|end_of_text|>",  # Granite
    "<end_of_utterance>",  # SmolVLM
    "<eos>",  # Gemma
    "<turn|>",  # Gemma 4
    "<|tool_response>",  # Gemma 4
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "[e~[",  # MiniMax
)

# Tokens of infilling (fill in the middle) that end a generation: padding, repository, file.
FILL_PADDING = ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")
FILL_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
FILL_FILE = ("<|file_sep|>",)

# Tokens of infilling that stand around its parts.
FILL_MARKUP = (
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
)

LOOKS_LIKE_CONTROL = (
    *END_OF_GENERATION,
    *FILL_PADDING,
    *FILL_REPOSITORY,
    *FILL_FILE,
    *FILL_MARKUP,
)

# Markup inside a reply that its reader must see (Harmony).
REPLY_MARKUP = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
