"""Text <-> numbers: char, word, BPE and WordPiece tokenizers, each one tokenizer.json."""

from allyouneed.text.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
