"""The picture of the demo in the README: the terminal's text and colours as SVG."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def save_picture(console: Console, file: Path) -> None:
    """Save what a recording console has shown. The file loads no font from the network."""
    svg = console.export_svg(title="make demo", clear=False, unique_id="demo")
    lines = _FONT.sub("", svg).splitlines()
    file.write_text("\n".join(line.rstrip() for line in lines if line.strip()) + "\n", "utf-8")
