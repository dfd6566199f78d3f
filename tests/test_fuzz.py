"""A small share of ``benchmarks/fuzz.py``: malformed calls of every command end well."""

from __future__ import annotations

import subprocess
import sys

import pytest
from _site import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_malformed_calls_end_in_one_line(seed):
    command = [sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), "250", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 failures" in done.stdout
    assert not done.stdout.startswith("250 calls: {2: 250}")
