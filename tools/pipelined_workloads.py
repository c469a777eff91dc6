"""Kernel graphs of the published pipelined workloads, written from their dimensions, as capture leaves them.

A captured graph of 144 layers takes a minute to trace; one that is written out takes milliseconds, and its
kernels, reads, work and saved bytes are those that `match` gives for the same model in 16 bits.
"""

import math
from dataclasses import dataclass, field

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import KERNEL, PARAMETER, Kernel, KernelGraph, KernelKind, Weight
from cerebras_wafer.hardware.work import WorkClass

HALF = 2  # bytes of a value


@dataclass(frozen=True)
class Transformer:
    """Dimensions of a published workload: `encoders` + `decoders` layers; without encoders it is a GPT-2."""

    encoders: int
    decoders: int
    width: int
    heads: int
    head_width: int
    inner: int
    sequence: int
    vocabulary: int

    @property
    def graph(self) -> KernelGraph:
        """One sample's training step with Adam in 16 bits."""
        return _decoder_only(self) if self.encoders == 0 else _encoder_decoder(self)


@dataclass
class _Writer:
    """Appends forward kernels and their backward ones."""

    shape: Transformer
    weights: list[Weight] = field(default_factory=list)
    forward: list[Kernel] = field(default_factory=list)
    backward: list[Kernel] = field(default_factory=list)

    def linear(self, module: str, source: str, inner: int, columns: int, *, saved: bool = False, tied: str = "") -> str:
        rows = self.shape.sequence
        weight = tied or self._weight(f"{module}.weight", (columns, inner))
        bias = [] if tied else [self._weight(f"{module}.bias", (columns,))]
        extents = (("batch", 1), ("rows", rows), ("inner", inner), ("columns", columns))
        return self._kernels(
            KernelKind.MATMUL, module, [source, *(PARAMETER + name for name in (weight, *bias))], (rows, columns),
            extents=extents, multiply_adds=(rows * inner * columns, 2 * rows * inner * columns), saved=saved,
        )  # fmt: skip

    def attention(self, module: str, query: str, key: str, value: str) -> str:
        shape = self.shape
        extents = (
            ("batch", 1), ("heads", shape.heads), ("query", shape.sequence), ("key", shape.sequence),
            ("width", shape.head_width),
        )  # fmt: skip
        scores = shape.heads * shape.sequence**2
        return self._kernels(
            KernelKind.ATTENTION, module, [query, key, value], (shape.sequence, shape.heads * shape.head_width),
            extents=extents, multiply_adds=(2 * scores * shape.head_width, 5 * scores * shape.head_width),
            work=((WorkClass.SCORE, scores),), saved=True,
        )  # fmt: skip

    def norm(self, module: str, source: str) -> str:
        width = self.shape.width
        names = [self._weight(f"{module}.{part}", (width,)) for part in ("weight", "bias")]
        elements = self.shape.sequence * width
        return self._kernels(
            KernelKind.NORM, module, [source, *(PARAMETER + name for name in names)], (self.shape.sequence, width),
            work=((WorkClass.NORM, elements),), saved=True,
        )  # fmt: skip

    def embedding(self, module: str, rows: int) -> str:
        weight = self._weight(f"{module}.weight", (rows, self.shape.width))
        elements = self.shape.sequence * self.shape.width
        return self._kernels(
            KernelKind.EMBEDDING, module, ["input:0", PARAMETER + weight], (self.shape.sequence, self.shape.width),
            work=((WorkClass.EMBEDDING, elements),),
        )  # fmt: skip

    def light(self, module: str, work: WorkClass, sources: list[str], width: int, *, saved_bytes: float = 0.0) -> str:
        """An elementwise kernel; `saved_bytes` are those of an element that forward keeps."""
        elements = self.shape.sequence * width
        return self._kernels(
            KernelKind.ELEMENTWISE, module, sources, (self.shape.sequence, width), work=((work, elements),),
            saved_bytes=round(elements * saved_bytes),
        )  # fmt: skip

    def finish(self, logits: str) -> KernelGraph:
        elements = self.shape.sequence * self.shape.vocabulary
        loss = self._kernel(
            Phase.LOSS, KernelKind.LOSS, "", [logits, "target:0"], (1,), work=((WorkClass.LOSS, elements),),
            operations=("aten._log_softmax", "aten.nll_loss_forward"),
        )  # fmt: skip
        trained = sum(math.prod(weight.shape) for weight in self.weights)
        update = self._kernel(
            Phase.UPDATE, KernelKind.UPDATE, "optimizer", [], (), work=((WorkClass.ELEMENTWISE, trained),)
        )
        kernels = (*self.forward, loss, *reversed(self.backward), update)
        return KernelGraph(1, "float16", tuple(self.weights), kernels)

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        self.weights.append(Weight(name, shape, trained=True, state_elements=2 * math.prod(shape)))
        return name

    def _kernels(
        self, kind: KernelKind, module: str, reads: list[str], shape: tuple[int, ...], *,
        extents: tuple[tuple[str, int], ...] = (), multiply_adds: tuple[int, int] = (0, 0),
        work: tuple[tuple[WorkClass, int], ...] = (), saved: bool = False, saved_bytes: int = 0,
    ) -> str:  # fmt: skip
        kept = HALF * math.prod(shape) if saved else saved_bytes
        forward = self._kernel(
            Phase.FORWARD, kind, module, reads, shape, extents=extents, multiply_adds=multiply_adds[0], work=work,
            saved_bytes=kept,
        )  # fmt: skip
        self.forward.append(forward)
        self.backward.append(
            self._kernel(
                Phase.BACKWARD, kind, module, [KERNEL + forward.name], shape, multiply_adds=multiply_adds[1], work=work
            )
        )
        return KERNEL + forward.name

    def _kernel(
        self, phase: Phase, kind: KernelKind, module: str, reads: list[str], shape: tuple[int, ...], *,
        extents: tuple[tuple[str, int], ...] = (), multiply_adds: int = 0,
        work: tuple[tuple[WorkClass, int], ...] = (), saved_bytes: int = 0, operations: tuple[str, ...] = (),
    ) -> Kernel:  # fmt: skip
        return Kernel(
            name=f"{phase}.{module}.{kind}", kind=kind, phase=phase, module=module, source=None,
            operations=operations, reads=tuple(reads), shape=shape, dtype="float32", extents=extents,
            multiply_adds=multiply_adds, element_work=work, output_bytes=HALF * math.prod(shape),
            saved_bytes=saved_bytes, grows_with_batch=True,
        )  # fmt: skip


def _attend(writer: _Writer, module: str, source: str, memory: str) -> str:
    """Projections of query, key and value, the core, the projection back."""
    shape = writer.shape
    inside = shape.heads * shape.head_width
    query = writer.linear(f"{module}.query", source, shape.width, inside, saved=True)
    key = writer.linear(f"{module}.key", memory, shape.width, inside, saved=True)
    value = writer.linear(f"{module}.value", memory, shape.width, inside, saved=True)
    mixed = writer.attention(f"{module}.core", query, key, value)
    return writer.linear(f"{module}.out", mixed, inside, shape.width)


def _add(writer: _Writer, module: str, source: str, residual: str) -> str:
    """Dropout, then the residual sum, which the norm after it keeps."""
    width = writer.shape.width
    dropped = writer.light(f"{module}.dropout", WorkClass.DROPOUT, [source], width, saved_bytes=1)
    return writer.light(f"{module}.add", WorkClass.ELEMENTWISE, [residual, dropped], width, saved_bytes=HALF)


def _feed_forward(writer: _Writer, module: str, source: str, activation: WorkClass, kept: bool) -> str:
    shape = writer.shape
    wide = writer.linear(f"{module}.expand", source, shape.width, shape.inner, saved=kept)
    active = writer.light(f"{module}.active", activation, [wide], shape.inner, saved_bytes=HALF)
    return writer.linear(f"{module}.contract", active, shape.inner, shape.width)


def _encoder_decoder(shape: Transformer) -> KernelGraph:
    """The transformer of Vaswani et al. (2017): norms after the sums, ReLU."""
    writer = _Writer(shape)
    x = writer.embedding("encoder.embedding", shape.vocabulary)
    for number in range(shape.encoders):
        module = f"encoder.{number}"
        x = writer.norm(f"{module}.norm1", _add(writer, f"{module}.1", _attend(writer, f"{module}.self", x, x), x))
        y = _feed_forward(writer, module, x, WorkClass.ELEMENTWISE, kept=False)
        x = writer.norm(f"{module}.norm2", _add(writer, f"{module}.2", y, x))
    memory, x = x, writer.embedding("decoder.embedding", shape.vocabulary)
    for number in range(shape.decoders):
        module = f"decoder.{number}"
        x = writer.norm(f"{module}.norm1", _add(writer, f"{module}.1", _attend(writer, f"{module}.self", x, x), x))
        y = _attend(writer, f"{module}.cross", x, memory)
        x = writer.norm(f"{module}.norm2", _add(writer, f"{module}.2", y, x))
        y = _feed_forward(writer, module, x, WorkClass.ELEMENTWISE, kept=False)
        x = writer.norm(f"{module}.norm3", _add(writer, f"{module}.3", y, x))
    return writer.finish(writer.linear("head", x, shape.width, shape.vocabulary))


def _decoder_only(shape: Transformer) -> KernelGraph:
    """GPT-2: norms before, GELU, the head's weight is the embedding's."""
    writer = _Writer(shape)
    x = writer.embedding("tokens", shape.vocabulary)
    for number in range(shape.decoders):
        module = f"blocks.{number}"
        normed = writer.norm(f"{module}.norm1", x)
        x = _add(writer, f"{module}.1", _attend(writer, f"{module}.attention", normed, normed), x)
        normed = writer.norm(f"{module}.norm2", x)
        x = _add(writer, f"{module}.2", _feed_forward(writer, module, normed, WorkClass.ACTIVATION, kept=True), x)
    last = writer.norm("norm", x)
    return writer.finish(writer.linear("head", last, shape.width, shape.vocabulary, tied="tokens.weight"))
