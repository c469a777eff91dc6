"""What a user is told of a mistake: what it is, the line of theirs, and what to do; never a traceback of ours."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError

pytestmark = pytest.mark.usefixtures("run_folder")


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"  # {mark}"))


def told(
    model, criterion=None, inputs=None, target=None, *, loader=None, make_optimizer=torch.optim.Adam
) -> ErrorReport:
    """The report of one epoch with a compiled model; the batches have 4 samples."""
    inputs = torch.randn(8, 4) if inputs is None else inputs
    target = torch.zeros(8, dtype=torch.int64) if target is None else target
    source = DataLoader(TensorDataset(inputs, target), batch_size=4) if loader is None else loader
    loader = cbt.utils.data.DataLoader(source)
    criterion = criterion or nn.CrossEntropyLoss()
    parameters = list(model.parameters())
    with pytest.raises(ReportedError) as caught, cbt.init_context():
        compiled = cbt.compile(model, make_optimizer(parameters), criterion, loader)  # compile
        for x, y in loader:
            criterion(compiled(x), y).backward()  # loop
    report = caught.value.report
    assert report.file == __file__
    return report


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 4)


class KeywordOnly(Part):
    def forward(self, *, x):  # keyword only
        return self.layer(x)


class Checkpoints(Part):
    reentrant = True

    def forward(self, x):
        return self.head(checkpoint(self.layer, x, use_reentrant=self.reentrant))  # checkpoint


class Raises(Part):
    def forward(self, x):
        raise ValueError("my own check")  # own raise


class WrongSize(Part):
    def forward(self, x):
        return self.head(self.layer(x)[:, :3])  # wrong size


class ReturnsTwo(Part):
    def forward(self, x):
        return self.layer(x), x


class Masked(nn.Module):
    def __init__(self, **how: bool) -> None:
        super().__init__()
        self.how, self.inner, self.head = how, nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True), nn.Linear(4, 4)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 3, -1)
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        return self.head(self.inner(x, x, tgt_mask=mask, **self.how)).mean(1)  # mask


@pytest.mark.parametrize(
    ("make_model", "mark", "message", "advice"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(4)), "compile", "0.weight of LazyLinear", "Run one batch"),
        (KeywordOnly, "keyword only", "KeywordOnly.forward(*, x) cannot be called as model(float32[4, 4])", "in this"),
        (Checkpoints, "checkpoint", "torch.utils.checkpoint with use_reentrant=True", "use_reentrant=False"),
        (Raises, "own raise", "ValueError: my own check", None),
        (
            WrongSize,
            "wrong size",
            "module head, Linear(in_features=4, out_features=4, bias=True), given float32[4, 3]",
            "fit",
        ),
        (ReturnsTwo, "compile", "CrossEntropyLoss cannot take what the model returns, a tuple of", "Return one tensor"),
        (Masked, "mask", "whether it is the causal one", "tgt_is_causal="),
    ],
)
def test_a_model_that_cannot_be_captured(make_model, mark, message, advice):
    report = told(make_model())
    assert report.line == line_of(mark)
    assert message in report.message
    assert (advice is None) == (report.advice is None)
    assert advice is None or advice in (report.advice or "")


def test_what_the_advice_says_does_compile():
    model = Checkpoints()
    model.reentrant = False
    for part in (model, Masked(tgt_is_causal=True)):
        loader = cbt.utils.data.DataLoader([(torch.randn(4, 4), torch.zeros(4, dtype=torch.int64))])
        with cbt.init_context():
            compiled = cbt.compile(part, torch.optim.SGD(part.parameters(), 0.1), nn.CrossEntropyLoss(), loader)
            for x, y in loader:
                nn.CrossEntropyLoss()(compiled(x), y).backward()
        assert all(parameter.grad is not None for parameter in part.parameters())


def test_labels_of_the_first_batch_are_checked_by_compile():
    report = told(Part().layer, target=torch.tensor([0, 1, 2, 4] * 2))
    assert "from 0 to 4, and the model's output has 4 classes" in report.message
    assert (report.code, report.line) == (ErrorCode.COMPILE_BAD_BATCH, line_of("compile"))
    report = told(Part().layer, target=torch.zeros(8))
    assert "CrossEntropyLoss needs int64 labels, and the loader's target is float32[4]" in report.message


def test_a_label_or_an_index_out_of_range_names_the_step_and_the_operation():
    report = told(Part().layer, target=torch.tensor([0, 0, 0, 0, 0, 0, 0, 9]))
    assert "the loss of step 1 cannot be computed: IndexError: Target 9" in report.message
    assert (report.code, report.line) == (ErrorCode.SCRIPT_RAISED, line_of("loop"))
    embedded = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(4, 4))
    report = told(embedded, inputs=torch.tensor([[0]] * 7 + [[6]]))
    assert (report.operation, report.module) == ("aten.embedding", "0")
    assert "int64[4, 1] with values from 0 to 6" in report.message


def test_a_loader_without_a_batch_says_why():
    data = TensorDataset(torch.randn(3, 4), torch.zeros(3, dtype=torch.int64))
    report = told(Part().layer, loader=DataLoader(data, batch_size=4, drop_last=True))
    assert "its dataset has 3 samples, batch_size is 4 and drop_last is True" in report.message
    assert report.line == line_of("compile")


def test_a_batch_criterion_or_optimizer_of_another_kind_names_the_call():
    by_name = told(Part().layer, loader=[{"x": torch.randn(4, 4)}])
    function = told(Part().layer, nn.functional.cross_entropy)
    optimizer = told(Part().layer, make_optimizer=torch.optim.LBFGS)
    assert {report.line for report in (by_name, function, optimizer)} == {line_of("compile")}
    assert "_init_group" not in str(optimizer)
    assert "SGD, Adam, AdamW" in (optimizer.advice or "")


class Prints(Part):
    def forward(self, x):
        print("shape", list(x.shape))
        print("h", self.layer(x))  # print
        return self.layer(x)


def test_no_fake_tensor_is_printed(capsys):
    assert told(Prints()).line == line_of("print")
    shown = capsys.readouterr().out
    assert "shape [4, 4]" in shown
    assert "Tensor" not in shown
