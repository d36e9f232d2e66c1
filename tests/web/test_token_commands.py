"""The commands of `token`."""

from __future__ import annotations

from queue_over_sql.web.tables import TOKEN_MARK
from tests.cli.command_line import run, succeed


def test_the_life_of_a_token(sqlite_url: str) -> None:
    """Made, listed and removed; the token is standard output, and is said once."""
    url = sqlite_url
    assert 3 == run("token", "list", url=url).exit_code
    made = succeed("token", "add", "ada", "--role", "operator", "--expires", "90d", url=url)
    token = made.out.rstrip("\n")
    assert token.startswith(TOKEN_MARK)
    assert "shown only this once" in made.err
    record = succeed("token", "add", "bob", "--role", "viewer", "--json", url=url).record
    assert "bob" == record["name"]
    assert "viewer" == record["role"]
    assert record["expires_at"] is None
    listed = succeed("token", "list", "--json", url=url)
    assert ["ada", "bob"] == [each["name"] for each in listed.records]
    shop = ("--role", "publisher", "--queue", "orders*", "--queue", "mail", "--json")
    assert ["orders*", "mail"] == succeed("token", "add", "shop", *shop, url=url).record["queues"]
    assert "orders*, mail" in succeed("token", "list", url=url).out
    assert token not in listed.out
    assert "Remove the token of ada?" in run("token", "remove", "ada", url=url).err
    assert succeed("token", "remove", "ada", "--yes", url=url).out.startswith("The token of ada")
    assert 3 == run("token", "remove", "ada", "--yes", url=url).exit_code
    succeed("token", "add", "root", "--role", "admin", url=url)
    refused = run("token", "remove", "root", "--yes", url=url)
    assert (2, True) == (refused.exit_code, "--last-admin" in refused.err)
    succeed("token", "remove", "root", "--yes", "--last-admin", url=url)


def test_wrong_options(sqlite_url: str) -> None:
    """A role that is none, and a name that is taken or none, are wrong usage."""
    succeed("token", "add", "ada", "--role", "admin", url=sqlite_url)
    for arguments in (("ada", "--role", "admin"), ("x y", "--role", "admin"), ("x", "--role", "r")):
        assert 2 == run("token", "add", *arguments, url=sqlite_url).exit_code
