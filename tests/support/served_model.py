"""The model that a worker under test serves, as transformers runs it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass
class Reference:
    """The served model as transformers runs it."""

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def encode(self, prompt: str) -> list[int]:
        return self.tokenizer(prompt)["input_ids"]

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def greedy(self, prompt: str | list[int], max_tokens: int) -> list[int]:
        """Greedy output, end-of-sequence token left out."""
        ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        inputs = torch.tensor([ids])
        output = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_tokens, do_sample=False
        )[0, len(ids) :].tolist()
        eos = self.tokenizer.eos_token_id
        return output[: output.index(eos)] if eos in output else output

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities of what may follow each of ``tokens``, in float64."""
        with torch.inference_mode():
            return self.model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
