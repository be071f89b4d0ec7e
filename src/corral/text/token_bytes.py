"""The bytes a token stands for. Byte tokens and byte-level alphabets give parts of characters."""

from corral.text.vocabulary import TokenType, Vocabulary

_LITERAL = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


def _byte_alphabet() -> dict[str, int]:
    """Return the byte behind each character of GPT-2's alphabet.

    Printable bytes of Latin-1 stand for themselves, the others for 256 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


def bytes_of_token(vocabulary: Vocabulary, token_id: int) -> bytes:
    """Return the bytes of text of a token; unused tokens have none, markup is spelled out."""
    text, kind = vocabulary.tokens[token_id], vocabulary.types[token_id]
    if kind in _LITERAL:
        return _utf8(text)
    if kind == TokenType.BYTE:
        return _byte(text)
    if kind != TokenType.NORMAL:
        return b""
    if not vocabulary.is_byte_level:
        return _utf8(text.replace("▁", " "))
    try:
        return bytes([_BYTES[char] for char in text])
    except KeyError:  # a token outside the alphabet can only stand for itself
        return _utf8(text)


def _byte(text: str) -> bytes:
    digits = text[3:-1]
    if (
        len(text) == 6
        and text.startswith("<0x")
        and all(c in "0123456789abcdefABCDEF" for c in digits)
    ):
        return bytes([int(digits, 16)])
    return _utf8(text)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
