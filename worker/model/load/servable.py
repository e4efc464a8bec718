"""Checks that a model can run over a paged KV cache, and the K and V of each of its layers.

What the configuration tells is checked before weights are loaded; the rest by a forward pass over three
tokens that notes what the attention layers really ask for.
"""

import inspect

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ..errors import UnservableModelError
from ..run.attention import LayerAttention, Rotation, connect
from ..run.kv_tensors import KVLayer

_PAGEABLE_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "attention"})


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Refuse what the configuration shows to be impossible.

    Raises:
        UnservableModelError
    """
    text = config.get_text_config()
    if config.is_encoder_decoder or text.is_encoder_decoder:
        raise UnservableModelError(name, f"{config.model_type} is an encoder-decoder, not a decoder")
    foreign = set(getattr(text, "layer_types", None) or ()) - _PAGEABLE_LAYER_TYPES
    if foreign:
        kinds = ", ".join(sorted(foreign))
        reason = f"{config.model_type} has layers of {kinds}; only full and sliding attention can be paged"
        raise UnservableModelError(name, reason)
    if getattr(text, "num_kv_shared_layers", 0):
        raise UnservableModelError(name, f"{config.model_type} shares K and V across layers")


def check_class(name: str, model_class: type[PreTrainedModel]) -> None:
    """Refuse model classes that keep state of their own or whose attention cannot be replaced.

    Raises:
        UnservableModelError
    """
    # Transformers has no public word for either.
    if model_class._is_stateful:  # pyright: ignore[reportPrivateUsage]
        raise UnservableModelError(
            name, f"{model_class.__name__} keeps a recurrent state, which has no pages"
        )
    if not model_class._supports_attention_backend:  # pyright: ignore[reportPrivateUsage]
        reason = f"{model_class.__name__} computes attention without transformers' AttentionInterface"
        raise UnservableModelError(name, reason)
    missing = {"position_ids", "logits_to_keep"} - set(inspect.signature(model_class.forward).parameters)
    if missing:
        reason = f"{model_class.__name__}.forward takes no {' or '.join(sorted(missing))}"
        raise UnservableModelError(name, reason)


def probe_layers(name: str, model: PreTrainedModel) -> tuple[KVLayer, ...]:
    """Run three tokens through ``model`` and return what each attention layer would keep of them.

    Raises:
        UnservableModelError: layers without attention, K and V of different sizes, masks of the model's own.
    """
    probe = _Probe(name)
    connect(model, probe)
    with torch.inference_mode():
        positions = torch.arange(3, device=model.device).unsqueeze(0)
        model(
            input_ids=torch.zeros_like(positions),
            position_ids=positions,
            use_cache=False,
            logits_to_keep=positions[0, -1:],
        )
    config = model.config.get_text_config()
    without = sorted(set(range(config.num_hidden_layers)) - set(probe.layers))
    if without:
        raise UnservableModelError(
            name, f"layer {without[0]} of {config.num_hidden_layers} has no attention to page"
        )
    for layer, kind in enumerate(getattr(config, "layer_types", None) or ()):
        # Elsewhere the mask makes the window, and there is no mask here.
        if (kind == "sliding_attention") != (layer in probe.sliding):
            raise UnservableModelError(
                name, f"layer {layer} is of {kind}, which its call of attention does not tell"
            )
    return tuple(probe.layers[layer] for layer in sorted(probe.layers))


class _Probe:
    """Attention that records the shapes of each layer's calls; its output is not used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.layers: dict[int, KVLayer] = {}
        self.sliding: set[int] = set()

    def attend(
        self, call: LayerAttention, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None
    ) -> Tensor:
        del rotation
        if call.layer in self.layers:
            raise UnservableModelError(self._name, f"layer {call.layer} attends more than once")
        if call.masked:
            raise UnservableModelError(self._name, f"layer {call.layer} makes an attention mask of its own")
        if key.shape != value.shape:
            sizes = f"K of {tuple(key.shape[1:])} and V of {tuple(value.shape[1:])} per token"
            raise UnservableModelError(self._name, f"layer {call.layer} has {sizes}; they must be equal")
        if call.sliding_window is not None:
            self.sliding.add(call.layer)
        self.layers[call.layer] = KVLayer(num_heads=key.shape[1], head_dim=key.shape[2])
        return torch.zeros_like(query)
