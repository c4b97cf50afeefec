"""What a model of transformers is, learned from one call of it without weights, and whether paged attention can serve it.

Nothing is derived from the names of configuration fields where the model's own code can tell. What cannot be served is
refused with one sentence that begins with the model's folder and architecture.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quire.errors import ModelError
from quire.models.lean_torch import import_rest
from quire.models.transformers_attention import AttentionLayer, Recorder, attending, attention
from quire.models.transformers_executor import Halves

EXTRA = "quire[transformers]"
NAME = "quire_paged"
"""Our attention's name inside transformers."""
LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})
"""Kinds in a configuration's `layer_types` whose state is keys and values alone."""
BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""RoPE types that transformers computes from the longest sequence of a batch, so that answers depend on their neighbours."""


@dataclass(frozen=True)
class Subject:
    """A model folder, the architecture it names, and the library that is to run it."""

    folder: Path
    architecture: str
    transformers: Any
    trust_remote_code: bool

    def cannot(self, why: str) -> ModelError:
        return ModelError(
            f"{self.folder}: {self.architecture} is not native and cannot run through transformers: {why}"
        )


@dataclass(frozen=True)
class Examined:
    """layers: those that attend, in the order of their calls. body: see `transformers_executor.Halves`. num_weights: numbers of parameters and
    buffers, largest: those of the largest one. activations: numbers alive in the widest moment of a step, for one token of the batch, logits not counted."""

    layers: tuple[AttentionLayer, ...]
    body: str
    vocab_size: int
    num_weights: int
    largest: int
    activations: int


def load_library(folder: Path, architecture: str) -> Any:
    """transformers, with our attention registered; raises ModelError that names the extra where it is not installed."""
    import_rest()  # of torch: it uses all of it, and models are examined on the meta device
    try:
        transformers: Any = importlib.import_module("transformers")
        importlib.import_module("transformers.models.auto.modeling_auto")
    except ImportError as exc:
        raise ModelError(
            f"{folder}: {architecture} is not native, and running it through transformers needs the extra: "
            f"pip install '{EXTRA}' ({sentence(exc)})"
        ) from exc
    transformers.AttentionInterface.register(NAME, attention)
    return transformers


def read_settings(subject: Subject) -> Any:
    """transformers' configuration, after refusing what it says about state and positions."""
    try:
        settings = subject.transformers.AutoConfig.from_pretrained(
            subject.folder, trust_remote_code=subject.trust_remote_code, local_files_only=True
        )
    except Exception as exc:  # whatever a model's files and code raise, it is the model that fails
        raise ModelError(f"{subject.folder}: transformers cannot read its config.json: {sentence(exc)}") from exc
    text = settings.get_text_config()
    if settings.is_encoder_decoder:
        raise subject.cannot("it has an encoder")
    if _has_alibi(text):
        raise subject.cannot("it adds ALiBi biases to the scores of attention")
    if other := sorted(set(getattr(text, "layer_types", None) or ()) - LAYER_KINDS):
        raise subject.cannot(f"it has layers of the kind {other[0]!r}, whose state is not keys and values")
    if kinds := _rope_kinds(getattr(text, "rope_parameters", None)) & BATCH_DEPENDENT_ROPE:
        raise subject.cannot(f"its rope type {min(kinds)!r} makes answers depend on other requests")
    return settings


def examine(subject: Subject, settings: Any) -> Examined:
    """Build the model without content, call it with three tokens as `TransformersExecutor` will, and look."""
    text = settings.get_text_config()
    try:
        with torch.device("meta"), torch.inference_mode():
            model = _build(subject, settings)
            sizes = [tensor.numel() for tensor in (*model.parameters(), *model.buffers())]
            widest = _widest(model, text)
            body, vocab_size, recorder = _call(model)
    except Exception as exc:  # see read_settings
        if isinstance(exc, KeyError) and exc.args == (NAME,):
            raise subject.cannot("its attention is not one that can be replaced") from exc
        raise subject.cannot(f"it cannot be examined ({sentence(exc)})") from exc
    if (built := type(model).__name__) != subject.architecture:
        raise subject.cannot(f"its model_type {settings.model_type!r} means {built}; config.json contradicts itself")
    layers = tuple(recorder.layers)
    expected = getattr(text, "num_hidden_layers", len(layers))
    if getattr(model, "_is_stateful", False):
        raise subject.cannot("it keeps other state than keys and values")
    if recorder.faults:
        raise subject.cannot(recorder.faults[0])
    if len(layers) != expected or not layers:
        raise subject.cannot(f"{len(layers)} of its {expected} layers attend through transformers' interface")
    if len({(layer.num_kv_heads, layer.head_size) for layer in layers}) > 1:
        raise subject.cannot("its layers have keys of different shapes")
    if (key_size := layers[0].head_size) < (value_size := max(layer.value_size for layer in layers)):
        raise subject.cannot(f"its values are wider ({value_size}) than its keys ({key_size})")
    if getattr(text, "sliding_window", None) and not any(layer.window for layer in layers):
        raise subject.cannot("it does not tell attention about its sliding window")
    attended = max(layer.num_heads * layer.head_size for layer in layers)
    # the residual, its norm and attention; the widest product, what it is made into, and copies on the way
    activations = 4 * (int(text.hidden_size) + attended + widest)
    return Examined(layers, body, vocab_size, sum(sizes), max(sizes), activations)


def prepare(model: Any) -> None:
    """With a padding token, some models read the batch back from the device to warn of padding. There is none here."""
    model.eval()
    model.config.pad_token_id = None


def sentence(exc: BaseException) -> str:
    """An error of somebody else's code in one line."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without the library's progress bars and notes; errors are raised anyway."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _build(subject: Subject, settings: Any) -> Any:
    model = subject.transformers.AutoModelForCausalLM.from_config(
        copy.deepcopy(settings),  # which the library changes
        attn_implementation=NAME,
        dtype=torch.bfloat16,  # its grouped products accept nothing else without content
        trust_remote_code=subject.trust_remote_code,
    )
    prepare(model)
    return model


def _call(model: Any) -> tuple[str, int, Recorder]:
    """The name of the model's body, the width of its logits, and the attention of one call. Takes the model apart."""
    ids = torch.zeros(3, dtype=torch.int64)
    with attending(Recorder(model)):
        body = _body(model, ids)
    recorder = Recorder(model)
    halves = Halves(model, body)
    with attending(recorder):
        hidden = halves.hidden(ids, ids)
    return body, int(halves.logits(hidden[:2]).shape[-1]), recorder


def _body(model: Any, ids: torch.Tensor) -> str:
    """The name of the outermost module that returns hidden states, which is the last one to return them."""
    names = {module: name for name, module in model.named_modules()}
    returned: list[str] = []

    def note(module: Any, _: Any, output: Any) -> None:
        if hasattr(output, "last_hidden_state"):
            returned.append(names[module])

    hooks = [module.register_forward_hook(note) for module in model.modules() if module is not model]
    model(input_ids=ids[None], position_ids=ids[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return returned[-1]


def _has_alibi(settings: Any) -> bool:
    """Falcon, MPT and BLOOM, each in its own spelling."""
    inner = getattr(settings, "attn_config", None)
    return bool(settings.model_type == "bloom" or getattr(settings, "alibi", False) or getattr(inner, "alibi", False))


def _rope_kinds(parameters: Any) -> set[str]:
    """RoPE types anywhere in a configuration's `rope_parameters`, which may differ by kind of layer."""
    if not isinstance(parameters, dict):
        return set()
    own = {str(parameters[key]) for key in ("rope_type", "type") if key in parameters}
    return own.union(*map(_rope_kinds, parameters.values()))


def _widest(model: Any, text: Any) -> int:
    """Columns of the widest product of a layer; of all chosen experts together where there are any."""
    head, chosen = model.get_output_embeddings(), int(getattr(text, "num_experts_per_tok", None) or 1)
    widths: list[int] = [
        max(parameter.shape) if parameter.dim() == 2 else max(parameter.shape[1:]) * chosen
        for module in model.modules()
        if module is not head and not isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() in (2, 3)
    ]
    return max(widths)
