"""Layers and losses of torch.nn: what compiles, what is refused by the name that a person wrote, what trains."""

import copy

import pytest
import torch
from tests.fixtures.training import train, train_eagerly
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.plans import Phase
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_step
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.passes.refuse import faults_of
from cerebras_wafer.compiler.pipeline import kernel_graph
from cerebras_wafer.errors import CompileError

BATCH = 8
ROWS, LINES, IMAGES, VOLUMES = (BATCH, 6), (BATCH, 4, 8), (BATCH, 4, 8, 8), (BATCH, 4, 4, 4, 4)
SPATIAL = {1: LINES, 2: IMAGES, 3: VOLUMES}


class Calls(nn.Module):
    """A function as a layer."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs):
        return self.function(*self.parts, *inputs)


class SideBySide(nn.Module):
    """Layers that each read the input, scaled by a weight so that all have a gradient to give."""

    def __init__(self, layers, shape):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape[1:]))
        self.layers = nn.ModuleDict(layers)

    def forward(self, x):
        results = []
        for layer in self.layers.values():
            result = layer(x * self.scale if x.is_floating_point() else x)
            while isinstance(result, tuple):
                result = result[0]
            results.append(result.square().mean())
        return torch.stack(results)


class Sum(nn.Module):
    def forward(self, output, target):
        return output.sum() + 0 * target.sum()


def of(names, *arguments, **named):
    """Layers of these classes, all made from the same arguments."""
    return {name: getattr(nn, name)(*arguments, **named) for name in names.split()}


def spatial(d):
    """Layers over lines, images or volumes."""
    by_name = {
        **of(f"Conv{d}d ConvTranspose{d}d", 4, 4, 3, groups=2),
        **of(f"MaxPool{d}d AvgPool{d}d AdaptiveAvgPool{d}d AdaptiveMaxPool{d}d", 2),
        **of(f"LPPool{d}d", 2, 2),
        **of(f"BatchNorm{d}d InstanceNorm{d}d", 4),
        **of(f"ReflectionPad{d}d ReplicationPad{d}d ZeroPad{d}d CircularPad{d}d", 1),
        **of(f"ConstantPad{d}d", 1, 2.0),
        **of(f"Dropout{d}d"),
    }
    by_name["without_statistics"] = getattr(nn, f"BatchNorm{d}d")(4, track_running_stats=False)
    by_name["with_statistics"] = getattr(nn, f"InstanceNorm{d}d")(4, affine=True, track_running_stats=True)
    pool, unpool = getattr(nn, f"MaxPool{d}d")(2, return_indices=True), getattr(nn, f"MaxUnpool{d}d")(2)
    by_name[f"MaxUnpool{d}d"] = Calls(lambda pool, unpool, x: unpool(*pool(x)), pool, unpool)
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[d]
    by_name |= {f"Upsample_{mode}": nn.Upsample(scale_factor=2, mode=mode) for mode in modes}
    return by_name | {f"Upsample_{mode}": nn.Upsample(scale_factor=2, mode=mode) for mode in ("nearest", "area")}


IMAGE_LAYERS = {
    **of("Softmax2d"),
    **of("LocalResponseNorm PixelShuffle PixelUnshuffle ChannelShuffle Unfold", 2),
    **of("GroupNorm", 2, 4),
    **of("SyncBatchNorm PReLU", 4),
    **of("UpsamplingNearest2d UpsamplingBilinear2d", scale_factor=2),
    "Fold": nn.Sequential(nn.Unfold(2), nn.Fold(8, 2)),
    "weight_norm": parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
    "spectral_norm": parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)),
    "antialias": Calls(lambda x: functional.interpolate(x, size=3, mode="bilinear", antialias=True)),
}
ACTIVATIONS = {
    **of("ReLU ReLU6 Hardtanh Sigmoid Tanh LogSigmoid ELU CELU SELU GLU GELU Hardshrink LeakyReLU Softplus Softshrink"),
    **of("PReLU Softsign Tanhshrink RReLU Hardsigmoid Hardswish SiLU Mish"),
    **of("Dropout AlphaDropout FeatureAlphaDropout"),
    **of("Softmax LogSoftmax Softmin", -1),
    **of("Threshold", 0.1, 0.0),
}
ROW_LAYERS = {
    **of("Linear RNNCell LSTMCell GRUCell", 6, 5),
    **of("LayerNorm RMSNorm", 6),
    "Bilinear": Calls(lambda layer, x: layer(x, x), nn.Bilinear(6, 6, 3)),
    "CosineSimilarity": Calls(lambda layer, x: layer(x, x.flip(0)), nn.CosineSimilarity()),
    "PairwiseDistance": Calls(lambda layer, x: layer(x, x.flip(0)), nn.PairwiseDistance()),
    "weight_norm": parametrizations.weight_norm(nn.Linear(6, 5)),
    "spectral_norm": parametrizations.spectral_norm(nn.Linear(6, 5)),
}
SEQUENCE_LAYERS = {
    **of("RNN LSTM GRU", 8, 5, batch_first=True),
    "deep": nn.LSTM(8, 5, 2, bidirectional=True, dropout=0.1, proj_size=3, batch_first=True),
    "MultiheadAttention": Calls(lambda layer, x: layer(x, x, x), nn.MultiheadAttention(8, 2)),
    "Transformer": Calls(lambda layer, x: layer(x, x), nn.Transformer(8, 2, 1, 1, 8, batch_first=True)),
}
FUNCTIONS = {
    "cumsum": lambda x: x.cumsum(-1), "cumprod": lambda x: x.cumprod(-1), "cummax": lambda x: x.cummax(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1), "prod": lambda x: x.prod(1), "unfold": lambda x: x.unfold(1, 2, 1),
    "one_hot": lambda x: x * functional.one_hot(x.argmax(-1), 6), "std_mean": lambda x: torch.std_mean(x, 1),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1), "trace": lambda x: (x @ x.T).trace(),
    "diag_embed": lambda x: torch.diag_embed(x), "diag": lambda x: (x @ x.T).diag(), "rot90": lambda x: x.rot90(),
    "eye": lambda x: x @ torch.eye(6), "linspace": lambda x: x * torch.linspace(0, 1, 6), "addr": lambda x: x.addr(
        x[:, 0], x[0]), "take": lambda x: x.take(torch.tensor([0, 1])), "nanmean": lambda x: x.nanmean(),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([1, 0]), x[:2]), "dist": lambda x: torch.dist(x, 2 * x),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([1]), 0.0), "renorm": lambda x: x.renorm(2, 0, 1.0),
    "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 3:]), "aminmax": lambda x: torch.aminmax(x, dim=1),
    "count_nonzero": lambda x: x * x.count_nonzero(), "tril_indices": lambda x: x[:, torch.tril_indices(3, 3)[0]],
}  # fmt: skip
RANDOM = {
    "rand": lambda x: x + torch.rand(6), "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(6), "randn_like": lambda x: x + torch.randn_like(x),
    "randint": lambda x: x + torch.randint(0, 4, (6,)), "normal": lambda x: torch.normal(x, 0.1),
    "normal_": lambda x: x + torch.empty(6).normal_(), "uniform_": lambda x: x + torch.empty(6).uniform_(-1, 1),
    "exponential_": lambda x: x + torch.empty(6).exponential_(), "log_normal_": lambda x: x + x.new_empty(
        6).log_normal_(), "bernoulli": lambda x: x * torch.bernoulli(x.detach().sigmoid()),
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x, hard=True),
    "rsample": lambda x: torch.distributions.Normal(x, x.exp(), validate_args=False).rsample(),
}  # fmt: skip
TOKEN_LAYERS = {
    "Embedding": nn.Embedding(10, 5, padding_idx=0),
    **{mode: nn.EmbeddingBag(10, 5, mode=mode) for mode in ("sum", "mean", "max")},
    "weighted": Calls(lambda bag, x: bag(x, per_sample_weights=x.float()), nn.EmbeddingBag(10, 5, mode="sum")),
    "EmbeddingBag": Calls(lambda bag, x: bag(x.flatten(), torch.arange(BATCH) * 6), nn.EmbeddingBag(10, 5)),
}
FAMILIES = {
    **{f"{d}d": (lambda d=d: spatial(d), shape) for d, shape in SPATIAL.items()},
    "images": (lambda: IMAGE_LAYERS, IMAGES),
    "activations": (lambda: ACTIVATIONS, ROWS),
    "rows": (lambda: ROW_LAYERS, ROWS),
    "sequences": (lambda: SEQUENCE_LAYERS, LINES),
    "functions": (lambda: {name: Calls(function) for name, function in FUNCTIONS.items()}, ROWS),
    "random": (lambda: {name: Calls(function) for name, function in RANDOM.items()}, ROWS),
    "tokens": (lambda: TOKEN_LAYERS, None),
}


def graph_of(model: nn.Module, criterion: nn.Module, batch: tuple[Tensor, Tensor]) -> KernelGraph:
    """Capture and match, without a plan."""
    step = capture_step(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1), divide(batch))
    graph = kernel_graph(step, CompileOptions("cs-2", 1, PrecisionSpec(), None), lambda _line: None)[1]
    assert faults_of(step.evaluate.graph_module.graph.nodes) == []
    return graph


def side_by_side(layers, shape) -> KernelGraph:
    inputs = torch.randint(0, 10, ROWS) if shape is None else torch.randn(shape)
    return graph_of(SideBySide(layers, shape or ROWS), Sum(), (inputs, torch.zeros(BATCH)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_is_covered_by_kernels(family):
    make, shape = FAMILIES[family]
    layers = make()
    graph = side_by_side({f"a_{name}": layer for name, layer in layers.items()}, shape)
    covered = {kernel.module.split(".")[1] for kernel in graph.of(Phase.FORWARD) if kernel.module}
    assert covered >= {f"a_{name}" for name in layers}


REFUSED_LAYERS = {
    "nn.FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=3), IMAGES),
    "nn.Upsample": (lambda: Calls(lambda x: functional.grid_sample(x, torch.zeros(BATCH, 3, 3, 2))), IMAGES),
    "sparse=False": (lambda: nn.Embedding(10, 5, sparse=True), None),
    "gumbel_softmax": (lambda: Calls(lambda x: x + torch.multinomial(x.softmax(-1), 1)), ROWS),
    "torch.where": (lambda: Calls(lambda x: x.masked_scatter(x > 0, -x)), ROWS),
}


@pytest.mark.parametrize("words", REFUSED_LAYERS)
def test_a_layer_without_a_kernel_is_refused_with_its_replacement(words):
    make, shape = REFUSED_LAYERS[words]
    with pytest.raises(CompileError) as caught:
        side_by_side({"layer": make()}, shape)
    assert words in (caught.value.report.advice or "")


def target(kind: str) -> Tensor:
    """A target for logits shaped (BATCH, 6)."""
    generator = torch.Generator().manual_seed(0)
    match kind:
        case "class":
            return torch.randint(0, 6, (BATCH,), generator=generator)
        case "sign":
            return torch.sign(torch.randn(BATCH, generator=generator))
        case "none":
            return torch.full(ROWS, -1)
    return torch.rand(ROWS, generator=generator).round()


def _ctc(output, target):
    lengths = torch.full((BATCH,), 5), torch.ones(BATCH, dtype=torch.long)
    return nn.CTCLoss()(output.log_softmax(-1).expand(5, *ROWS), target[:, None], *lengths)


LOSSES = {
    "zeros and ones": {
        **of("MSELoss L1Loss SmoothL1Loss HuberLoss PoissonNLLLoss BCEWithLogitsLoss MultiLabelSoftMarginLoss"),
        **of("HingeEmbeddingLoss SoftMarginLoss CrossEntropyLoss KLDivLoss"),
        "BCELoss": lambda y, t: nn.BCELoss()(y.sigmoid(), t),
        "TripletMarginLoss": lambda y, t: nn.TripletMarginLoss(swap=True)(y, y.flip(1), t),
        "TripletMarginWithDistanceLoss": lambda y, t: nn.TripletMarginWithDistanceLoss()(y, y.flip(1), t),
        "weighted": nn.BCEWithLogitsLoss(pos_weight=torch.ones(6)),
    },
    "class": {
        **of("CrossEntropyLoss MultiMarginLoss"),
        "NLLLoss": lambda y, t: nn.NLLLoss()(y.log_softmax(-1), t),
        "smooth": nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.ones(6)),
    },
    "sign": {
        "CosineEmbeddingLoss": lambda y, t: nn.CosineEmbeddingLoss()(y, y.flip(1), t),
        "MarginRankingLoss": lambda y, t: nn.MarginRankingLoss()(y[:, 0], y[:, 1], t),
    },
    "none": of("MultiLabelMarginLoss"),
}
REFUSED_LOSSES = {
    "nn.CTCLoss": (_ctc, "class"),
    "nn.GaussianNLLLoss": (lambda y, t: nn.GaussianNLLLoss()(y, t, torch.ones_like(y)), "ones"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_is_covered_by_kernels(kind):
    losses = LOSSES[kind].values()
    criterion = Calls(lambda y, t: sum(loss(y, t) for loss in losses))
    graph = graph_of(nn.Linear(6, 6), criterion, (torch.randn(ROWS), target(kind)))
    assert graph.of(Phase.LOSS)


@pytest.mark.parametrize("name", REFUSED_LOSSES)
def test_a_loss_without_a_kernel_is_refused_by_its_name(name):
    loss, kind = REFUSED_LOSSES[name]
    with pytest.raises(CompileError) as caught:
        graph_of(nn.Linear(6, 6), Calls(loss), (torch.randn(ROWS), target(kind)))
    faults = caught.value.report.faults or [caught.value.report]
    assert any(name in (fault.advice or "") for fault in faults)


def test_a_criterion_may_have_parameters_of_its_own():
    graph = graph_of(
        nn.Linear(6, 6), Calls(lambda head, y, t: head(y).sub(t).square().mean(), nn.Linear(6, 6)),
        (torch.randn(ROWS), target("ones")),
    )  # fmt: skip
    assert [weight.name for weight in graph.weights] == ["weight", "bias"]


# No layers: what holds layers or parameters, what they are derived from, and what stands for another until it is run.
NO_LAYERS = {
    "Buffer", "Container", "DataParallel", "Identity", "Flatten", "Unflatten", "LinearCrossEntropyOptions", "Module",
    "ModuleDict", "ModuleList", "Parameter", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase", "Sequential",
    "UninitializedBuffer", "UninitializedParameter", "NLLLoss2d",
}  # fmt: skip
# Parts of layers that are tried, or refused for an operation that other tests refuse.
INSIDE = {
    "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer",
    "Upsample", "FractionalMaxPool3d", "CrossMapLRN2d",
    "CTCLoss", "GaussianNLLLoss", "FractionalMaxPool2d", "AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss",
}  # fmt: skip


@pytest.mark.skipif(torch.__version__ >= "2.14", reason="later releases may have more layers")
def test_no_layer_of_torch_is_left_out():
    tried = {name for make, _ in FAMILIES.values() for name in make()} | {n for kind in LOSSES.values() for n in kind}
    classes = {name for name, value in vars(nn).items() if isinstance(value, type) and not name.startswith("Lazy")}
    assert classes - tried - NO_LAYERS - INSIDE == set()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


TRAINED = {
    "lstm": (Recurrent, LINES),
    "volumes": (
        lambda: nn.Sequential(nn.Conv3d(4, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.PReLU(4),
                              nn.MaxPool3d(2), nn.ConvTranspose3d(4, 2, 2), nn.Flatten(), nn.Linear(54, 3)),
        VOLUMES,
    ),
    "bags": (lambda: nn.Sequential(nn.EmbeddingBag(10, 5), nn.Hardswish(), nn.Linear(5, 3)), None),
}  # fmt: skip


def batches_of(shape, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    if shape is None:
        inputs = [torch.randint(0, 10, ROWS, generator=generator) for _ in range(count)]
    else:
        inputs = [torch.randn(shape, generator=generator) for _ in range(count)]
    return [(x, torch.randint(0, 3, (BATCH,), generator=generator)) for x in inputs]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("name", TRAINED)
def test_training_from_the_artifact_is_that_of_eager_pytorch(name):
    make, shape = TRAINED[name]
    torch.manual_seed(0)
    model = make()
    eager = copy.deepcopy(model)
    run = train(model, sgd, data=batches_of(shape))
    assert run.losses == pytest.approx(train_eagerly(eager, sgd, data=batches_of(shape)), rel=1e-5)
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


class Noisy(nn.Module):
    """A latent that is drawn, as of a variational autoencoder, and noise on the way."""

    def __init__(self):
        super().__init__()
        self.mean, self.log_variance, self.head = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        latent = self.mean(x) + (0.5 * self.log_variance(x)).exp() * torch.randn_like(self.mean(x))
        return self.head(latent + 0.1 * torch.rand(4) + torch.randint(0, 2, (4,)))


@pytest.mark.usefixtures("run_folder")
def test_random_numbers_of_a_model_are_the_engines_and_follow_the_seed():
    torch.manual_seed(0)
    model = Noisy()
    runs = {}
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        torch.manual_seed(100 + len(runs))  # of no account: the engine has a generator of its own
        runs[name] = train(copy.deepcopy(model), sgd, data=batches_of(ROWS), seed=seed).losses
    assert runs["first"] == runs["again"]
    assert runs["first"] != runs["other"]
    torch.manual_seed(3)
    assert runs["first"] == pytest.approx(train_eagerly(copy.deepcopy(model), sgd, data=batches_of(ROWS)), rel=1e-5)
