"""What a package index shows: addresses of the project, and a README whose links work there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Fill in what depends on where the repository is: ``QUEUE_OVER_SQL_HOME``, an address.

    Without it the README has no relative links, and there are no project URLs.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and, if the address is known, the project's URLs."""
        home = os.environ.get("QUEUE_OVER_SQL_HOME", "").rstrip("/")
        tag = f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _LINK.sub(lambda link: _resolved(link, home, tag), text),
        }
        metadata["urls"] = {}
        if home:
            metadata["urls"] = {
                "Homepage": home,
                "Documentation": f"{home}/blob/{tag}/docs/README.md",
                "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{home}/issues",
                "Source": home,
            }


def _resolved(link: re.Match[str], home: str, tag: str) -> str:
    picture, text, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    if not home:
        return "" if picture else text
    return f"{picture}[{text}]({home}/{'raw' if picture else 'blob'}/{tag}/{target})"
