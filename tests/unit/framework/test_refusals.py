"""What cannot be mapped is refused by compile, with its code, its place and what to write instead."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode

pytestmark = pytest.mark.usefixtures("run_folder")


class Part(nn.Module):
    """Every model here has one layer, so that something could be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class ReadsItem(Part):
    def forward(self, x):
        return self.layer(x) * x.mean().item()  # here


class MakesAFloat(Part):
    def forward(self, x):
        scale = float(self.layer.bias.sum())  # here
        return self.layer(x) * scale


class Prints(Part):
    def forward(self, x):
        print(x)  # here
        return self.layer(x)


class Formats(Part):
    def forward(self, x):
        self.seen = f"the sum is {x.sum()}"  # here
        return self.layer(x)


class LeavesPyTorch(Part):
    def forward(self, x):
        return self.layer(x) + torch.from_numpy(x.detach().numpy())  # here


class Branches(Part):
    def forward(self, x):
        x = self.layer(x)
        if x.sum() > 0:  # here
            return x
        return x + 1


class Loops(Part):
    def forward(self, x):
        x = self.layer(x)
        while x.norm() > 1:  # here
            x = x / 2
        return x


class UsesCond(Part):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: self.layer(y), lambda y: self.layer(y) + 1, (x,))  # here


class FindsNonzero(Part):
    def forward(self, x):
        return self.layer(x) + x.nonzero().sum()  # here


class FindsUnique(Part):
    def forward(self, x):
        return self.layer(x) + x.unique().sum()  # here


class SelectsByMask(Part):
    def forward(self, x):
        return self.layer(x) + x.masked_select(x > 0).sum()  # here


class IndexesByMask(Part):
    def forward(self, x):
        return self.layer(x) + x[x > 0].sum()  # here


class RepeatsByData(Part):
    def forward(self, x):
        return self.layer(x).repeat_interleave(torch.tensor([1, 1, 1]), 0)  # here


class Factorises(Part):
    def forward(self, x):
        return self.layer(x) + torch.linalg.svdvals(self.layer(x)).sum()  # here


class Sorts(Part):
    def forward(self, x):
        return self.layer(x).sort().values  # here


class Transforms(Part):
    def forward(self, x):
        return torch.fft.rfft(self.layer(x)).abs().sum() + self.layer(x)  # here


@torch.library.custom_op("refusals::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("refusals::with_fake", mutates_args=())
def with_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


with_fake.register_fake(torch.empty_like)
with_fake.register_autograd(lambda _context, gradient: gradient * 2)


class UsesCustomOperation(Part):
    def forward(self, x):
        return with_fake(self.layer(x))  # here


class UsesUndescribedOperation(Part):
    def forward(self, x):
        return without_fake(self.layer(x))  # here


VALUE, DATA, SHAPE = ErrorCode.COMPILE_VALUE_READ, ErrorCode.COMPILE_DATA_DEPENDENT, ErrorCode.COMPILE_DYNAMIC_SHAPE
KERNEL, CUSTOM = ErrorCode.COMPILE_NO_KERNEL, ErrorCode.COMPILE_CUSTOM_OPERATION


def line_of(kind: type[nn.Module], mark: str = "# here") -> int:
    """The line that is marked in a class of this file."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"class {kind.__name__}("))
    return next(number + 1 for number in range(start, len(lines)) if lines[number].endswith(mark))


def refused(model: nn.Module, criterion: nn.Module | None = None) -> cbt.CompileError:
    batches = [(torch.randn(3, 4), torch.randn(3, 4))] * 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(cbt.CompileError) as caught, cbt.init_context():
        cbt.compile(model, optimizer, criterion or nn.MSELoss(), cbt.utils.data.DataLoader(batches))
    return caught.value


@pytest.mark.parametrize(
    ("kind", "code", "operation", "advice"),
    [
        (ReadsItem, VALUE, "tensor.item()", "Keep it a tensor"),
        (MakesAFloat, VALUE, "float(tensor)", "Keep it a tensor"),
        (Prints, VALUE, "print(tensor)", "Take the print out"),
        (Formats, VALUE, "a tensor in a formatted text", "Take the print out"),
        (LeavesPyTorch, VALUE, "tensor.numpy()", "data loader"),
        (Branches, DATA, "bool(tensor)", "torch.where"),
        (Loops, DATA, "bool(tensor)", "torch.where"),
        (UsesCond, DATA, "torch.cond", "torch.where"),
        (FindsNonzero, SHAPE, "aten.nonzero", "torch.where"),
        (FindsUnique, SHAPE, "aten._unique2", "data loader"),
        (SelectsByMask, SHAPE, "aten.masked_select", "torch.where"),
        (IndexesByMask, SHAPE, "aten.index", "torch.where"),
        (RepeatsByData, SHAPE, "aten.repeat_interleave", "mask"),
        (Factorises, KERNEL, "aten._linalg_svd", "matrix products"),
        (Sorts, KERNEL, "aten.sort", "softmax"),
        (Transforms, KERNEL, "aten._fft_r2c", "matrix of the transform"),
        (UsesCustomOperation, CUSTOM, "refusals.with_fake", "PyTorch's operations"),
        (UsesUndescribedOperation, CUSTOM, "refusals.without_fake", "PyTorch's operations"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_refused_with_its_place(kind, code, operation, advice):
    model = nn.Sequential(nn.Linear(4, 4), kind())
    report = refused(model).report
    first = report.faults[0] if report.faults else report
    assert (first.code, first.operation) == (code, operation)
    assert (first.file, first.line) == (__file__, line_of(kind))
    assert first.module == "1"
    assert first.advice is not None
    assert advice in first.advice


class ManyFaults(Part):
    def __init__(self) -> None:
        super().__init__()
        self.branches, self.sorts, self.prints, self.finds = Branches(), Sorts(), Prints(), FindsNonzero()

    def forward(self, x):
        x = self.finds(self.prints(self.sorts(self.branches(x))))
        return x * x.max().item()  # here


def test_several_faults_are_reported_together():
    error = refused(ManyFaults())
    found = [(fault.code, fault.module, fault.line) for fault in error.report.faults]
    assert found == [
        (DATA, "branches", line_of(Branches)),
        (KERNEL, "sorts", line_of(Sorts)),
        (VALUE, "prints", line_of(Prints)),
        (SHAPE, "finds", line_of(FindsNonzero)),
        (VALUE, "", line_of(ManyFaults)),
    ]
    assert "ManyFaults cannot be compiled: 5 faults" in str(error)
    assert "\n5. " in str(error)


def test_operations_without_a_kernel_are_listed_once_a_place():
    error = refused(nn.Sequential(Sorts(), Factorises(), Sorts()))
    assert [(fault.operation, fault.module) for fault in error.report.faults] == [
        ("aten.sort", "0"),
        ("aten._linalg_svd", "1"),
        ("aten.sort", "2"),
    ]


class PrintingLoss(nn.Module):
    def forward(self, output, target):
        loss = (output - target).square().mean()
        print(loss)  # here
        return loss


def test_the_criterion_is_checked_as_well():
    report = refused(Part().layer, PrintingLoss()).report
    assert (report.code, report.line) == (VALUE, line_of(PrintingLoss))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="TorchScript does not work on Python 3.14")
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_refused_part_by_part():
    traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(3, 4))
    report = refused(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU(), traced)).report
    assert {fault.code for fault in report.faults} == {ErrorCode.COMPILE_TORCHSCRIPT}
    assert [fault.module for fault in report.faults] == ["0", "2"]
    assert report.file == __file__


class WrongShapes(Part):
    def forward(self, x):
        return self.layer(x.flatten())  # here


def test_a_plain_error_in_forward_keeps_its_words_and_its_place():
    report = refused(WrongShapes()).report
    assert (report.code, report.file, report.line) == (
        ErrorCode.COMPILE_UNSUPPORTED,
        __file__,
        line_of(WrongShapes),
    )
    assert "same reduction dim" in report.message


class FixedPython(Part):
    """Python that does not depend on data."""

    def forward(self, x):
        assert x.shape[0] == len(x)
        print("shape", x.shape)
        x = self.layer(x)
        for _ in range(x.size(1)):
            x = x / 2
        x[x > 3] = 0.0
        return torch.where(x.sum() > 0, x, x + 1) if self.training else x


def test_python_that_does_not_depend_on_values_is_compiled():
    model = FixedPython()
    batches = [(torch.randn(3, 4), torch.randn(3, 4))] * 2
    with cbt.init_context() as context:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cbt.compile(model, optimizer, nn.MSELoss(), cbt.utils.data.DataLoader(batches))
        assert context.session is not None


def test_a_refused_model_is_left_as_it_was():
    model = nn.Sequential(nn.BatchNorm1d(4), Branches())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    batch = torch.ones(3, 4), torch.ones(3, 4)
    with pytest.raises(cbt.CompileError), cbt.init_context():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cbt.compile(model, optimizer, nn.MSELoss(), cbt.utils.data.DataLoader([batch]))
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(type(tensor) in (torch.Tensor, nn.Parameter) for tensor in (*model.parameters(), *model.buffers()))
