"""The page of rollouts as one HTML file. Knows markup and what a browser may run: no rollouts.

Styles, scripts and data stand in the file itself. A content security policy names the one script and the one style
sheet by their hashes, so a browser runs nothing else, whatever the rollouts say, and asks no server for anything.
"""

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template

from .token_text import shown

SCRIPTS = ("data.js", "list.js", "conversation.js", "tokens.js", "start.js")


def page(title: str, *, summary: str, data: str) -> str:
    """The HTML of a page; `data` is what `pack` returned.

    Example:
        page("Rollouts", summary="2 rollouts", data=pack(rollouts, texts))
    """
    style = _read("page.css")
    script = "".join(_read(name) for name in SCRIPTS)
    return Template(_read("page.html")).substitute(
        title=escape(shown(title)),
        summary=escape(summary),
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'",
        style=style,
        script=script,
        data=data,
    )


def frame(html: str) -> str:
    """The page inside a notebook's cell: neither's styles reach the other."""
    style = "width:100%;height:720px;border:1px solid #8886;border-radius:8px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(html)}"></iframe>'


def _read(name: str) -> str:
    return files("envmask_trl.inspect").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
