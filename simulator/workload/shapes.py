"""Models by shape: their parameters, with the order and names of the reference implementations.

Nothing is allocated: a trillion parameters are a few thousand records. Besides its shape, a record has what parallel
layouts need: its layer (pipeline parallelism), the dimension that tensor parallelism divides (M. Shoeybi et al.,
Megatron-LM, 2019) and its expert.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import meant_todo, read_bytes
from deeppart.partition import IntArray

#: Limits, so that a typo does not exhaust memory.
_MOST_LAYERS = 100_000
_MOST_TENSORS = 10_000_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model."""

    path: str  # name, as in a module's ``state_dict()``
    shape: tuple[int, ...]
    layer: int  # -1 before the first layer, the number of layers after the last one
    divided: int | None = None  # the dimension that tensor parallelism divides, or None
    expert: int | None = None  # the number of its expert within the layer, or None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Model:
    """A model by shapes."""

    name: str  # as given by the user
    parameters: tuple[Parameter, ...]  # in order
    layers: int  # number of layers, which a pipeline can divide
    experts: int  # per layer; 0 for a dense model
    source: str  # of the shapes

    @property
    def elements(self) -> int:
        """Number of model parameters in the usual sense."""
        return sum(parameter.elements for parameter in self.parameters)


def bert(layers: int, hidden: int, vocabulary: int, positions: int = 512, types: int = 2) -> Iterator[Parameter]:
    """``BertModel`` with its pooler: J. Devlin et al., BERT, 2018; names as in Hugging Face's transformers."""
    yield from _embedding("embeddings.word_embeddings", vocabulary, hidden)
    yield Parameter("embeddings.position_embeddings.weight", (positions, hidden), -1)
    yield Parameter("embeddings.token_type_embeddings.weight", (types, hidden), -1)
    yield from _norm("embeddings.LayerNorm", hidden, -1)
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for projection in ("query", "key", "value"):
            yield from _columns(f"{name}.attention.self.{projection}", hidden, hidden, layer)
        yield from _rows(f"{name}.attention.output.dense", hidden, hidden, layer)
        yield from _norm(f"{name}.attention.output.LayerNorm", hidden, layer)
        yield from _columns(f"{name}.intermediate.dense", hidden, 4 * hidden, layer)
        yield from _rows(f"{name}.output.dense", 4 * hidden, hidden, layer)
        yield from _norm(f"{name}.output.LayerNorm", hidden, layer)
    yield Parameter("pooler.dense.weight", (hidden, hidden), layers)
    yield Parameter("pooler.dense.bias", (hidden,), layers)


def gpt(layers: int, hidden: int, vocabulary: int = 50257, positions: int = 1024) -> Iterator[Parameter]:
    """``GPT2LMHeadModel`` with tied embeddings, and weights of shape (inputs, outputs): A. Radford et al., 2019."""
    yield from _embedding("transformer.wte", vocabulary, hidden)
    yield Parameter("transformer.wpe.weight", (positions, hidden), -1)
    for layer in range(layers):
        name = f"transformer.h.{layer}"
        yield from _norm(f"{name}.ln_1", hidden, layer)
        yield from _columns(f"{name}.attn.c_attn", hidden, 3 * hidden, layer, rows_are_inputs=True)
        yield from _rows(f"{name}.attn.c_proj", hidden, hidden, layer, rows_are_inputs=True)
        yield from _norm(f"{name}.ln_2", hidden, layer)
        yield from _columns(f"{name}.mlp.c_fc", hidden, 4 * hidden, layer, rows_are_inputs=True)
        yield from _rows(f"{name}.mlp.c_proj", 4 * hidden, hidden, layer, rows_are_inputs=True)
    yield from _norm("transformer.ln_f", hidden, layers)


def llama(
    layers: int, hidden: int, feed_forward: int, heads: int, key_heads: int, vocabulary: int, experts: int = 0
) -> Iterator[Parameter]:
    """``LlamaForCausalLM`` without tied embeddings; with experts, ``MixtralForCausalLM``."""
    keys = hidden // heads * key_heads
    yield from _embedding("model.embed_tokens", vocabulary, hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for projection, width in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            divided = 1 if projection == "o" else 0
            yield Parameter(f"{name}.self_attn.{projection}_proj.weight", (width, hidden), layer, divided)
        if experts:
            yield Parameter(f"{name}.block_sparse_moe.gate.weight", (experts, hidden), layer)
        for expert in range(experts):
            for matrix in ("w1", "w2", "w3"):
                path = f"{name}.block_sparse_moe.experts.{expert}.{matrix}.weight"
                shape, divided = ((hidden, feed_forward), 1) if matrix == "w2" else ((feed_forward, hidden), 0)
                yield Parameter(path, shape, layer, divided, expert)
        for matrix in () if experts else ("gate", "up", "down"):
            shape, divided = ((hidden, feed_forward), 1) if matrix == "down" else ((feed_forward, hidden), 0)
            yield Parameter(f"{name}.mlp.{matrix}_proj.weight", shape, layer, divided)
        yield Parameter(f"{name}.input_layernorm.weight", (hidden,), layer)
        yield Parameter(f"{name}.post_attention_layernorm.weight", (hidden,), layer)
    yield Parameter("model.norm.weight", (hidden,), layers)
    yield Parameter("lm_head.weight", (vocabulary, hidden), layers, 0)


def tensors(count: int, elements: int) -> Iterator[Parameter]:
    """Equal tensors, one per layer."""
    for number in range(count):
        yield Parameter(f"tensors.{number}.weight", (elements,), number, 0)


_BERT = "J. Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, 2018"
_GPT2 = "A. Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
_GPT3 = "T. Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1"
_MEGATRON = "D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, table 1"
_LLAMA = "A. Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3"
_MIXTRAL = "A. Jiang et al., Mixtral of Experts, 2024, table 1"

Builder = Callable[[], Iterator[Parameter]]
#: Name -> (function that builds it, layers, experts, source).
PRESETS: Mapping[str, tuple[Builder, int, int, str]] = {
    "bert-base": (lambda: bert(12, 768, 30522), 12, 0, _BERT),
    "bert-large": (lambda: bert(24, 1024, 30522), 24, 0, _BERT),
    "gpt2": (lambda: gpt(12, 768), 12, 0, _GPT2),
    "gpt2-medium": (lambda: gpt(24, 1024), 24, 0, _GPT2),
    "gpt2-large": (lambda: gpt(36, 1280), 36, 0, _GPT2),
    "gpt2-xl": (lambda: gpt(48, 1600), 48, 0, _GPT2),
    "gpt3-6.7b": (lambda: gpt(32, 4096, positions=2048), 32, 0, _GPT3),
    "gpt3-13b": (lambda: gpt(40, 5120, positions=2048), 40, 0, _GPT3),
    "gpt3-175b": (lambda: gpt(96, 12288, positions=2048), 96, 0, _GPT3),
    "gpt-1t": (lambda: gpt(128, 25600, 51200, 2048), 128, 0, _MEGATRON),
    "llama3-8b": (lambda: llama(32, 4096, 14336, 32, 8, 128256), 32, 0, _LLAMA),
    "llama3-70b": (lambda: llama(80, 8192, 28672, 64, 8, 128256), 80, 0, _LLAMA),
    "llama3-405b": (lambda: llama(126, 16384, 53248, 128, 8, 128256), 126, 0, _LLAMA),
    "mixtral-8x7b": (lambda: llama(32, 4096, 14336, 32, 8, 32000, 8), 32, 8, _MIXTRAL),
    "mixtral-8x22b": (lambda: llama(56, 6144, 16384, 48, 8, 32768, 8), 56, 8, "Mistral AI, Mixtral-8x22B-v0.3"),
}

_FAMILY = re.compile(r"(bert|gpt)-(\d+)x(\d+)x(\d+)")
_TENSORS = re.compile(r"tensors-(\d+)x(.+)")
#: The names of families, for messages.
FAMILIES = ("bert-LAYERSxHIDDENxVOCABULARY", "gpt-LAYERSxHIDDENxVOCABULARY", "tensors-COUNTxSIZE")


def model_named(name: str) -> Model:
    """A preset, or a model of a family: ``bert-48x2048x30522``, ``tensors-100000x4KiB`` (of 4-byte elements)."""
    if name in PRESETS:
        build, layers, experts, source = PRESETS[name]
        return Model(name, tuple(build()), layers, experts, source)
    if match := _FAMILY.fullmatch(name):
        layers, hidden, vocabulary = (int(number) for number in match.groups()[1:])
        if 0 < layers <= _MOST_LAYERS and hidden > 0 and vocabulary > 0:
            build_family = bert if match[1] == "bert" else gpt
            return Model(name, tuple(build_family(layers, hidden, vocabulary)), layers, 0, f"family {match[1]}")
    if match := _TENSORS.fullmatch(name):
        try:
            count, nbytes = int(match[1]), read_bytes(match[2])
        except ValueError:
            count, nbytes = 0, 0.0
        if 0 < count <= _MOST_TENSORS and nbytes >= 4 and nbytes % 4 == 0:
            return Model(name, tuple(tensors(count, int(nbytes) // 4)), count, 0, "equal tensors")
    raise ConfigError(
        "there is no such model",
        expected=", ".join([*PRESETS, *WORKLOADS]) + ", or of a family: " + ", ".join(FAMILIES),
        found=repr(name),
        where="--state",
        todo=meant_todo(
            name,
            [*PRESETS, *WORKLOADS],
            "take one of these, or --from with a checkpoint or a Python file of your own",
        ),
    )


# --- pieces of layers -----------------------------------------------------------------------------------------------


def _embedding(name: str, vocabulary: int, hidden: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (vocabulary, hidden), -1, 0)


def _norm(name: str, hidden: int, layer: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (hidden,), layer)
    yield Parameter(f"{name}.bias", (hidden,), layer)


def _columns(name: str, inputs: int, outputs: int, layer: int, *, rows_are_inputs: bool = False) -> Iterator[Parameter]:
    """A matrix whose outputs are divided, together with its bias."""
    shape, divided = ((inputs, outputs), 1) if rows_are_inputs else ((outputs, inputs), 0)
    yield Parameter(f"{name}.weight", shape, layer, divided)
    yield Parameter(f"{name}.bias", (outputs,), layer, 0)


def _rows(name: str, inputs: int, outputs: int, layer: int, *, rows_are_inputs: bool = False) -> Iterator[Parameter]:
    """A matrix whose inputs are divided; its bias, which is added after the sum, is not."""
    shape, divided = ((inputs, outputs), 0) if rows_are_inputs else ((outputs, inputs), 1)
    yield Parameter(f"{name}.weight", shape, layer, divided)
    yield Parameter(f"{name}.bias", (outputs,), layer)


# --- leaves -----------------------------------------------------------------------------------------------------------


ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One leaf of the whole state."""

    parameter: Parameter  # to which it belongs
    path: str  # in the state
    dtype: str  # torch's name
    shape: tuple[int, ...]
    optimizer: bool = False  # true if it belongs to the optimizer
    #: true if no layout divides it, as for buffers; tensors without dimensions are never divided
    plain: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * ITEM_BYTES[self.dtype]


# --- MLPerf Storage's workloads ---------------------------------------------------------------------------------------


_SOURCE = "MLCommons, MLPerf Storage v2.0, Submission_guidelines.md, table 2"
_VOCABULARY = 128256
_ITEM, _OPTIMIZER_ITEM, _OPTIMIZER_TENSORS, _SMALL = 2, 4, 3, 5


@dataclass(frozen=True, slots=True)
class Workload:
    """A model of the benchmark's closed division."""

    name: str  # as a state
    layers: int  # layers, hidden, feed_forward, heads, key_heads: of the model
    hidden: int
    feed_forward: int
    heads: int
    key_heads: int
    tensor: int  # tensor, pipeline, data: parallel ranks of each kind
    pipeline: int
    data: int
    zero: int  # ZeRO stage, 1 or 3
    published: float  # size by the benchmark's table, in units of 2^30 bytes

    @property
    def processes(self) -> int:
        """Number of processes that write a checkpoint."""
        return self.tensor * self.pipeline * self.data

    @property
    def specification(self) -> str:
        """The suffix of the model's name in a state: dtype, optimizer, layout."""
        sizes = [f"tp={self.tensor}"] if self.tensor > 1 else []
        sizes += [f"pp={self.pipeline}"] if self.pipeline > 1 else []
        return ":fp16+adam-mixed@" + ",".join([*sizes, "fsdp" if self.zero == 3 else "zero1"])

    def model(self) -> Model:
        """The model with its parameters."""
        shape = (self.layers, self.hidden, self.feed_forward, self.heads, self.key_heads, _VOCABULARY)
        return Model(self.name, tuple(llama(*shape)), self.layers, 0, _SOURCE)

    def rank_bytes(self) -> IntArray:
        """int64[processes], the bytes that each rank of the benchmark writes."""
        parts = self.data if self.zero == 3 else 1
        keys = self.hidden // self.heads * self.key_heads
        embedding = _VOCABULARY * self.hidden
        norms = (self.hidden, self.hidden)
        widths = (self.hidden + 2 * keys, self.hidden, 2 * self.feed_forward, self.feed_forward)
        matrices = [self.hidden * width for width in widths]
        elements = 2 * embedding + self.hidden + (sum(norms) + sum(matrices)) * self.layers
        layer = sum(norm // parts for norm in norms) + sum(matrix // self.tensor // parts for matrix in matrices)
        ends = embedding // self.tensor // parts
        # If layers cannot be divided evenly, the first stages have one more. In DLIO's numbering of ranks, tensor
        # parallelism is innermost, then pipeline, then data parallelism.
        each, more = divmod(self.layers, self.pipeline)
        stages = np.array([(each + (stage < more)) * layer for stage in range(self.pipeline)], dtype=np.int64)
        stages[0] += ends
        stages[-1] += ends + self.hidden // parts
        model = np.tile(np.repeat(stages, self.tensor), self.data) * _ITEM
        if self.zero != 3:
            model[self.tensor * self.pipeline :] = 0
        optimizer = _OPTIMIZER_TENSORS * (elements // self.processes + _SMALL * self.hidden) * _OPTIMIZER_ITEM
        found: IntArray = model + optimizer
        return found


#: Name of the state -> the workload.
WORKLOADS: Mapping[str, Workload] = {
    each.name: each
    for each in (
        Workload("mlperf-8b", 32, 4096, 14336, 32, 8, 1, 1, 8, 3, 105),
        Workload("mlperf-70b", 80, 8192, 28672, 128, 8, 8, 1, 8, 3, 912),
        Workload("mlperf-405b", 126, 16384, 53248, 128, 8, 8, 32, 2, 1, 5290),
        Workload("mlperf-1t", 128, 25872, 98304, 192, 32, 8, 64, 2, 1, 18000),
    )
}
