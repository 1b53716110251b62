"""Writes a generated section of a Markdown file anew. Knows two comment lines, nothing of what stands between them.

<!-- mask ablation: generated -->
| arm | ...
<!-- mask ablation: end -->
"""

from pathlib import Path


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the two marks of `name`.

    Raises:
        ValueError: the file lacks the marks.
    """
    start, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    before = path.read_text(encoding="utf-8")
    if before.count(start) != 1 or before.count(end) != 1 or before.index(end) < before.index(start):
        raise ValueError(
            f"{path} lacks the lines {start!r} and {end!r}, in this order; add them where the text belongs"
        )
    head, tail = before.split(start)[0], before.split(end)[1]
    path.write_text(f"{head}{start}\n{text}\n{end}{tail}", encoding="utf-8")
