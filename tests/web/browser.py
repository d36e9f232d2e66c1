"""A browser without JavaScript that follows links and fills forms."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx2


class Browser:
    """Follows links and sends forms, as a browser without JavaScript does."""

    def __init__(self, root: str, prefix: str = "") -> None:
        self._client = httpx2.Client(
            base_url=root, timeout=30, follow_redirects=True, trust_env=False
        )
        self.root = root
        self._prefix = prefix
        self.page = httpx2.Response(0)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def get(self, path: str, status: int = 200) -> str:
        """Open a page, and insist on its status."""
        self.page = self._client.get(self._prefix + path)
        assert status == self.page.status_code, self.page.text
        return self.page.text

    def post(self, path: str, expected: int = 200, **fields: Any) -> str:
        """Send a form as a page of this server does, and follow to where it leads."""
        headers = {"origin": self.root}
        self.page = self._client.post(self._prefix + path, data=fields, headers=headers)
        assert expected == self.page.status_code, self.page.text
        return self.page.text

    def press(self, button: str, expected: int = 200, **fields: Any) -> str:
        """Send the first form of the page that has this button, with its fields and these."""
        for attributes, content in re.findall(
            r"<form ([^>]*)>(.*?)</form>", self.page.text, re.DOTALL
        ):
            pressed = re.search(rf"<button([^>]*)>{re.escape(button)}</button>", content)
            if pressed is None:
                continue
            target = re.search(r'formaction="([^"]*)"', pressed[1])
            target = target or re.search(r'action="([^"]*)"', attributes)
            assert target is not None, content
            hidden = dict(
                re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', content)
            )
            given = {name: html.unescape(value) for name, value in hidden.items()} | fields
            path = html.unescape(target[1]).removeprefix(self._prefix)
            return self.post(path, expected, **given)
        raise AssertionError(f"no form has the button {button!r}:\n{self.page.text}")

    def sign_in(self, token: str, status: int = 200) -> str:
        """Sign in with a token."""
        self.get("/sign-in")
        return self.press("Sign in", status, token=token)

    def text(self) -> str:
        """What the page says, without its tags."""
        plain = re.sub(r"<[^>]*>", " ", self.page.text)
        return " ".join(html.unescape(plain).split())
