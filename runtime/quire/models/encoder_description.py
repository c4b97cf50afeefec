"""What an encoder is, as data: BERT and its kind (arXiv:1810.04805). No torch, and file names only in the map of names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from quire.errors import ModelError
from quire.models import registry
from quire.models.description import NameMap
from quire.models.metadata import Fields, read_json
from quire.models.pooling import Kind, Pooling, choose, from_folder
from quire.models.source import ModelFiles

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
BODIES = ("BertModel", "BertForMaskedLM", "BertForPreTraining")
CLASSIFIER = "BertForSequenceClassification"
DEFAULT_KIND: Kind = "cls"
LENGTH_FILE = "sentence_bert_config.json"

_ACTIVATIONS: dict[object, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_LINEAR = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_TOP = {
    "embed": "bert.embeddings.word_embeddings.weight",
    "positions": "bert.embeddings.position_embeddings.weight",
    "types": "bert.embeddings.token_type_embeddings.weight",
    "embed_norm": "bert.embeddings.LayerNorm.weight",
    "embed_norm_bias": "bert.embeddings.LayerNorm.bias",
}
_HEAD = {
    "pooler": "bert.pooler.dense.weight",
    "pooler_bias": "bert.pooler.dense.bias",
    "classifier": "classifier.weight",
    "classifier_bias": "classifier.bias",
}
NAMES = NameMap(
    top=_TOP | _HEAD,
    layer={
        name + suffix: f"bert.encoder.layer.{{i}}.{module}.{kind}"
        for name, module in _LINEAR.items()
        for suffix, kind in (("", "weight"), ("_bias", "bias"))
    },
    ignored=(
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
        *(f"cls.predictions.{rest}" for rest in ("bias", "decoder.weight", "decoder.bias")),
        *(f"cls.predictions.transform.{rest}" for rest in ("dense.weight", "dense.bias")),
        *(f"cls.predictions.transform.LayerNorm.{rest}" for rest in ("weight", "bias")),
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    ),
)


@dataclass(frozen=True)
class EncoderDescription:
    """An encoder: embeddings of words, positions and segments, and blocks of attention and an MLP, each followed by its norm.

    max_positions  tokens that it can take; max_model_len those it was made for, where its files name fewer
    head           what one number of a text or pair of texts is made with: its activation; None where there is no head
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    num_types: int
    max_positions: int
    max_model_len: int
    norm_eps: float
    activation: Activation
    checkpoint_dtype: str
    head: Literal["sigmoid", "identity"] | None = None

    def layer_parameters(self) -> dict[str, tuple[int, ...]]:
        """Name to shape (rows are outputs) of one layer's weights."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "k", "v", "o"), (hidden, hidden))
        shapes |= {"attn_norm": (hidden,), "up": (inner, hidden), "down": (hidden, inner), "mlp_norm": (hidden,)}
        return shapes | {f"{name}_bias": shape[:1] for name, shape in shapes.items()}

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of all weights: those of the embeddings, of the head, and `layers.<i>.<name>`."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "embed": (self.vocab_size, hidden),
            "positions": (self.max_positions, hidden),
            "types": (self.num_types, hidden),
            "embed_norm": (hidden,),
            "embed_norm_bias": (hidden,),
        }
        if self.head is not None:
            shapes |= {"pooler": (hidden, hidden), "pooler_bias": (hidden,)}
            shapes |= {"classifier": (1, hidden), "classifier_bias": (1,)}
        for layer in range(self.num_layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self.layer_parameters().items()}
        return shapes

    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.parameters().values())


@dataclass(frozen=True)
class EncoderModel:
    """An encoder whose metadata has been read."""

    files: ModelFiles
    description: EncoderDescription
    pooling: Pooling


def inspect(files: ModelFiles, flag: str) -> EncoderModel | None:
    """Read config.json; None where it is no encoder's. flag: `--pooling`. Raises ModelError for what is damaged or not supported."""
    if files.kind != "folder":
        return None
    config = read_json(files.path / "config.json")
    names = registry.names_in(config)
    if not names and config.values.get("model_type") == "bert":
        names = [BODIES[0]]
    if not names or names[0] not in (*BODIES, CLASSIFIER):
        return None
    if flag == "none":
        raise ModelError(f"{config.path}: an encoder generates no text, so --pooling none is not possible")
    description = _description(config)
    if names[0] == CLASSIFIER and flag == "auto":
        return EncoderModel(files, replace(description, head=_head(config)), Pooling("cls", normalise=False))
    pooling = choose(flag, from_folder(files.path), DEFAULT_KIND)
    assert pooling is not None
    return EncoderModel(files, description, pooling)


def _description(config: Fields) -> EncoderDescription:
    kind = config.values.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise config.bad("position_embedding_type", kind, "absolute")
    if config.flag("is_decoder"):
        raise config.bad("is_decoder", True, "false: only encoders are computed so")
    name = config.values.get("hidden_act") or "gelu"
    if name not in _ACTIVATIONS:
        raise config.bad("hidden_act", name, f"one of {', '.join(map(str, _ACTIVATIONS))}")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % heads:
        raise config.bad("num_attention_heads", heads, f"a divisor of hidden_size ({hidden})")
    positions = config.integer("max_position_embeddings")
    return EncoderDescription(
        num_layers=config.count("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=heads,
        vocab_size=config.integer("vocab_size"),
        num_types=config.integer("type_vocab_size", 2),
        max_positions=positions,
        max_model_len=min(_said_length(config.path.parent) or positions, positions),
        norm_eps=config.number("layer_norm_eps", 1e-12),
        activation=_ACTIVATIONS[name],
        checkpoint_dtype=str(config.values.get("dtype") or config.values.get("torch_dtype") or "float32"),
    )


def _said_length(folder: Path) -> int | None:
    """Tokens of a text that sentence-transformers' files say the model was made for."""
    path = folder / LENGTH_FILE
    return read_json(path).maybe_integer("max_seq_length") if path.is_file() else None


def _head(config: Fields) -> Literal["sigmoid", "identity"]:
    """The activation of a head of one number; sigmoid, unless sentence-transformers' entries in config.json say that there is none."""
    labels = config.section("id2label")
    count = config.integer("num_labels", len(labels.values) if labels is not None else 2)
    if count != 1:
        raise config.bad("num_labels", count, "1: only heads that give one score are served")
    own = config.section("sentence_transformers") or Fields({}, config.path)
    said = own.values.get("activation_fn") or config.values.get("sbert_ce_default_activation_function")
    match str(said or "Sigmoid").rpartition(".")[2]:
        case "Sigmoid":
            return "sigmoid"
        case "Identity":
            return "identity"
    raise config.bad("activation_fn", said, "Sigmoid or Identity")
