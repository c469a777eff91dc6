"""The text form of kernel graphs: for people, for goldens, and as a file of each artifact. It round-trips."""

from collections.abc import Iterator
from urllib.parse import quote, unquote

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph, KernelKind, Weight
from cerebras_wafer.errors import CompilerBug
from cerebras_wafer.hardware.work import WorkClass

_SAFE = "/:.,+-_<>[]()@"  # in names; what else there is, spaces above all, is percent-encoded


def print_graph(graph: KernelGraph) -> str:
    """A line a weight, then a block a kernel: what it is, what it reads, what it leaves, and its work."""
    lines = [f"graph batch {graph.batch_size} compute {graph.compute_dtype}"]
    lines += [_weight_line(weight) for weight in graph.weights]
    for kernel in graph.kernels:
        lines += _kernel_lines(kernel)
    return "\n".join(lines) + "\n"


def parse_graph(text: str) -> KernelGraph:
    """The graph of a text form. Raises `CompilerBug` with a line that is none."""
    weights: list[Weight] = []
    blocks: list[dict[str, list[str]]] = []
    lines = iter(text.splitlines())
    line = next(lines, "")
    try:
        _, _, batch, _, compute_dtype = line.split()
        for line in lines:
            keyword, *words = line.split()
            if keyword == "weight":
                weights.append(_parse_weight(words))
            elif keyword == "kernel":
                blocks.append({keyword: words})
            else:
                blocks[-1][keyword] = words
        return KernelGraph(int(batch), compute_dtype, tuple(weights), tuple(_parse_kernel(block) for block in blocks))
    except (ValueError, IndexError, KeyError) as error:
        raise CompilerBug(f"a kernel graph's text cannot be read at {line!r}: {error}") from error


def _weight_line(weight: Weight) -> str:
    trained = "trained" if weight.trained else "frozen"
    tied = f" tied {_quoted(weight.tied_to)}" if weight.tied_to else ""
    return f"weight {_quoted(weight.name)} {_shape(weight.shape)} {trained} state {weight.state_elements}{tied}"


def _parse_weight(words: list[str]) -> Weight:
    name, shape, trained, _, state, *tied = words
    tied_to = unquote(tied[1]) if tied else None
    return Weight(unquote(name), _parse_shape(shape), trained == "trained", int(state), tied_to)


def _kernel_lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {_quoted(kernel.name)} {kernel.kind} {kernel.phase}"
    optional = {
        "module": _quoted(kernel.module),
        "source": _quoted(kernel.source or ""),
        "operations": " ".join(map(_quoted, kernel.operations)),
        "reads": " ".join(map(_quoted, kernel.reads)),
        "result": f"{kernel.dtype} {_shape(kernel.shape)}",
        "extents": " ".join(f"{name}={value}" for name, value in kernel.extents),
        "multiply_adds": str(kernel.multiply_adds or ""),
        "elements": " ".join(f"{work}={count}" for work, count in kernel.element_work),
        "output_bytes": str(kernel.output_bytes or ""),
        "saved_bytes": str(kernel.saved_bytes or ""),
        "once": "a_micro_batch" if not kernel.grows_with_batch else "",
    }
    yield from (f"  {keyword} {value}" for keyword, value in optional.items() if value)


def _parse_kernel(block: dict[str, list[str]]) -> Kernel:
    name, kind, phase = block["kernel"]
    dtype, shape = block["result"]

    def words(keyword: str) -> list[str]:
        return block.get(keyword, [])

    def number(keyword: str) -> int:
        return int(words(keyword)[0]) if words(keyword) else 0

    return Kernel(
        name=unquote(name),
        kind=KernelKind(kind),
        phase=Phase(phase),
        module=unquote("".join(words("module"))),
        source=unquote("".join(words("source"))) or None,
        operations=tuple(map(unquote, words("operations"))),
        reads=tuple(map(unquote, words("reads"))),
        shape=_parse_shape(shape),
        dtype=dtype,
        extents=tuple(_pairs(words("extents"))),
        multiply_adds=number("multiply_adds"),
        element_work=tuple((WorkClass(work), count) for work, count in _pairs(words("elements"))),
        output_bytes=number("output_bytes"),
        saved_bytes=number("saved_bytes"),
        grows_with_batch="once" not in block,
    )


def _pairs(words: list[str]) -> Iterator[tuple[str, int]]:
    for word in words:
        name, value = word.split("=")
        yield name, int(value)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else quote(name, safe=_SAFE)


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip("[]").split(",") if part)
