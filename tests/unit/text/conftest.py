"""Vocabularies for the tests of `corral.text`: small ones made here, real ones where present."""

import json
import lzma
from pathlib import Path

import pytest

from corral.gguf.reader import read_header
from corral.gguf.values import Array
from corral.text.tokenizer import Tokenizer
from golden import GOLDEN
from smollm2 import demo_path


def plain_metadata(path):
    """Return the metadata of a GGUF file as plain Python values."""
    metadata = read_header(path).metadata
    out = {}
    for key in metadata:
        content = metadata.value(key).content
        out[key] = content.values() if isinstance(content, Array) else content
    return out


@pytest.fixture(scope="session")
def golden_texts():
    """Return a function from a vocabulary's name to its metadata and (text, ids) pairs."""
    folder = GOLDEN / "vocab"
    if not folder.is_dir():
        pytest.skip("the golden vocabularies are not in ../shared/golden/vocab")

    def load(name, tmp_path):
        base = folder / f"ggml-vocab-{name}.gguf"
        unpacked = tmp_path / base.name
        unpacked.write_bytes(lzma.decompress(Path(f"{base}.xz").read_bytes()))
        texts = Path(f"{base}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
        lines = Path(f"{base}.out").read_text().split("\n")
        expected = [[int(word) for word in line.split()] for line in lines]
        return plain_metadata(unpacked), list(zip(texts[:46], expected[:46], strict=True))

    return load


@pytest.fixture(scope="session")
def demo_metadata():
    """Return the metadata of the demo model, or skip."""
    path = demo_path()
    if path is None:
        pytest.skip("the demo model is not in the cache: corral pull demo")
    return plain_metadata(path)


@pytest.fixture(scope="session")
def demo_texts():
    """Return llama.cpp's tokens for a list of texts on the demo model, or skip."""
    path = GOLDEN / "smollm2" / "tokenize.json"
    if not path.is_file():
        pytest.skip("the golden tokens are not in ../shared/golden/smollm2")
    return json.loads(path.read_text())


@pytest.fixture
def bpe_metadata():
    """Return a byte-level vocabulary: all bytes, a few words, ChatML's tokens."""
    return bpe_vocabulary()


@pytest.fixture
def spm_metadata():
    """Return a SentencePiece vocabulary: bytes, letters, a few words, three control tokens."""
    return spm_vocabulary()


@pytest.fixture(scope="session")
def bpe():
    """Return the tokenizer of the byte-level vocabulary."""
    return Tokenizer.from_metadata(bpe_vocabulary())


@pytest.fixture(scope="session")
def spm():
    """Return the tokenizer of the SentencePiece vocabulary."""
    return Tokenizer.from_metadata(spm_vocabulary())


def byte_characters():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


def bpe_vocabulary():
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ċ Ċ"]
    words = [merge.replace(" ", "") for merge in merges]
    control = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokens = [*byte_characters(), *words, *control, "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (256 + len(words)) + [3, 3, 3, 4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }


def spm_vocabulary():
    words = ["▁", "▁h", "he", "ll", "hell", "hello", "▁hello", "▁w", "or", "ld", "▁world"]
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*head, *letters, *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(letters) + len(words)),
        "tokenizer.ggml.scores": [0.0] * len(head)
        + [-100.0] * len(letters)
        + [-float(place) for place in range(len(words), 0, -1)],
    }
