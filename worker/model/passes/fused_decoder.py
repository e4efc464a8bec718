"""Fused decoder layer: each residual addition and the norm that follows are one kernel."""

from torch import Tensor, nn

from .fused_layers import FusedNorm


class FusedDecoderLayer(nn.Module):
    """A decoder layer: norm, attention, addition, norm, feed-forward layer, addition.

    Gemma 2 and 3 also normalize what attention and feed-forward layer give before it is added.
    """

    def __init__(
        self,
        before_attention: FusedNorm,
        attention: nn.Module,
        after_attention: nn.Module | None,
        before_mlp: FusedNorm,
        mlp: nn.Module,
        after_mlp: nn.Module | None,
    ) -> None:
        super().__init__()
        self.input_layernorm = before_attention
        self.self_attn = attention
        self.after_attention = after_attention
        self.before_mlp = before_mlp
        self.mlp = mlp
        self.after_mlp = after_mlp
        self._following: tuple[FusedNorm, ...] = ()

    def precede(self, norm: FusedNorm) -> None:
        """Say whose input this layer's output is, so that the last addition and that norm are one kernel."""
        # In a tuple: as an attribute it would become a part of this layer.
        self._following = (norm,)

    def forward(self, hidden_states: Tensor, **options: object) -> Tensor:
        """[1, T, hidden] to [1, T, hidden]; the options are for attention."""
        x, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)
        if self.after_attention is not None:
            x = self.after_attention(x)
        hidden_states = self.before_mlp.add(x, hidden_states)
        x = self.mlp(self.before_mlp(hidden_states))
        if self.after_mlp is not None:
            x = self.after_mlp(x)
        for norm in self._following:
            return norm.add(x, hidden_states)
        return hidden_states + x


def fused_decoder_layer(layer: nn.Module) -> FusedDecoderLayer | None:
    """What might be the same as ``layer``, whose norms are fused: its parts have the names they should have.

    Whether it is the same, only a forward pass can tell.
    """
    parts = dict(layer.named_children())
    attention, mlp = parts.get("self_attn"), parts.get("mlp")
    before_attention, after_attention = parts.get("input_layernorm"), parts.get("post_attention_layernorm")
    before_mlp, after_mlp = parts.get("pre_feedforward_layernorm"), parts.get("post_feedforward_layernorm")
    if before_mlp is None:
        # Llama calls the norm before its feed-forward layer by what is before that.
        before_mlp, after_attention = after_attention, None
    if attention is None or mlp is None:
        return None
    if not isinstance(before_attention, FusedNorm) or not isinstance(before_mlp, FusedNorm):
        return None
    return FusedDecoderLayer(before_attention, attention, after_attention, before_mlp, mlp, after_mlp)
