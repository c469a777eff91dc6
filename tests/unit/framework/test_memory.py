"""Memory that a step frees and asks for again."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from cerebras_pytorch.memory import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(6 << 20) for _ in range(6)]  # of 24 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident_mebibytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10

with freed_memory_kept():
    counts = [faults() for _ in range(8)]
    inside = resident_mebibytes()
print(max(counts[4:]), inside - resident_mebibytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is of glibc")
def test_what_a_step_frees_is_there_for_the_next_and_given_back_at_the_end():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    new_pages, given_back_mebibytes = map(int, done.stdout.split())
    assert new_pages < 500  # of 36,864 that are written to
    assert given_back_mebibytes > 100
