"""RMSNorm of each head of queries and keys."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """``x / sqrt(mean(x**2) + eps) * (offset + weight)`` over each head (see ``rms_norm``)."""

    query: Tensor
    """[head_dim], the weight for queries."""
    key: Tensor
    """[head_dim], the weight for keys."""
    eps: float
    offset: float = 0.0

    def check(self, head_dim: int) -> None:
        """Raise ``ValueError`` naming the weight that does not fit heads of ``head_dim``."""
        for name, weight in (("query", self.query), ("key", self.key)):
            if weight.shape != (head_dim,):
                raise ValueError(f"norm.{name}: expected [{head_dim}], got {tuple(weight.shape)}")
