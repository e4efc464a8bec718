"""What a token is called in OpenAI's log-probabilities: its text, if the gateway has the vocabulary.

Workers send token ids. A gateway that is given the model's ``tokenizer.json`` can name them; one that is not
calls them ``token_id:N``.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

TokenName = Callable[[int], str]

_CACHED: Final = 1 << 16


def by_id(token: int) -> str:
    return f"token_id:{token}"


def load_names(files: Mapping[str, Path]) -> dict[str, TokenName]:
    """Names for each model whose ``tokenizer.json`` is given.

    Raises:
        ImportError: the package ``tokenizers`` is not installed.
        ValueError: a file is no tokenizer.
    """
    return {model: _load(path) for model, path in files.items()}


def _load(path: Path) -> TokenName:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path}: not a tokenizer.json: {error}") from None

    @lru_cache(_CACHED)
    def name(token: int) -> str:
        text: str = tokenizer.decode([token], skip_special_tokens=False)
        return text if text and "\ufffd" not in text else tokenizer.id_to_token(token) or by_id(token)

    return name
