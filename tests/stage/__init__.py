"""Bytecode is kept: each process of the tests would compile penstock anew, which takes longer than most of them do.

It is imported before all else that is compiled.
"""

from __future__ import annotations

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes inherit it
