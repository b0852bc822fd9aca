"""Names of secrets are known however their words are joined, and names that only look like them are not hidden."""

from __future__ import annotations

from itertools import product

from penstock.dashboard.mask import is_secret, mask
from penstock.schema.encoder import MASKED

SECRETS = ("password", "passwd", "pwd", "passphrase", "passcode", "secret", "token", "credential", "cookie", "pincode")
KEYS = (
    "api",
    "access",
    "auth",
    "private",
    "secret",
    "signing",
    "encryption",
    "license",
    "master",
    "session",
    "ssh",
    "hmac",
)
OWNERS = ("api", "db", "client", "user", "admin", "refresh", "my", "smtp", "x", "old", "stripe", "id", "github2")
AFTER = ("", "hash", "value", "s", "2", "plain", "b64", "secret")
SHORT = ("userpin", "cardpin", "atmpin", "mypin", "pin", "pins", "pinhash", "dbpass", "smtppass", "adminpass")
INNOCENT = [
    "author", "authored", "authority", "bypass", "compass", "compassion", "cookiecutter", "credentialed", "encompass",
    "foreign_key", "hairpin", "happiness", "hotkey", "idempotency_key", "key", "keyboard", "keynote", "keypad",
    "keyword", "linchpin", "mapping", "monkey", "opinion", "passage", "passed", "passenger", "passing", "passive",
    "passport", "passwordless", "pineapple", "pinned", "pinned_at", "pinpoint", "pins_count", "primary_key",
    "public_key", "secretariat", "secretary", "secretion", "secretive", "shipping", "shipping_code", "sort_key",
    "spin", "spinner", "spinning", "surpass", "token_bucket", "token_count", "token_expires_at", "token_limit",
    "token_type", "tokenized", "tokenizer", "turnkey", "zip_in", "has_password", "password_changed_at", "is_secret",
    "max_tokens", "total_tokens", "prompt_tokens", "completion_tokens", "tokens_used", "cookie_consent", "pinterest",
    "spin_number", "kingpin", "trespass", "apiary", "api_keyboard", "mastery", "accessory", "maxtokens", "tokencount",
    "sessions", "session_id", "privates", "licenses", "passes", "pass_count",
]  # fmt: skip


def styles(*words: str) -> set[str]:
    """One name in each way to join its words."""
    left = [word for word in words if word]
    camel = left[0] + "".join(word.capitalize() for word in left[1:])
    joined = {joint.join(left) for joint in ("", "_", "-", ".", " ", "__", ":")}
    return {
        *joined,
        *(name.upper() for name in joined),
        camel,
        camel[:1].upper() + camel[1:],
        f"_{camel}",
        f"X-{camel}",
    }


def test_every_way_to_join_the_name_of_a_secret_is_hidden() -> None:
    names = set[str]()
    for owner, secret, after in product(("", *OWNERS), SECRETS, AFTER):
        names |= styles(owner, secret, after)
    for owner, key, after in product(("", "stripe", "my"), KEYS, ("", "s", "id")):
        names |= styles(owner, key, f"key{after}" if after == "s" else "key", "" if after == "s" else after)
    for name in SHORT:
        names |= {name, name.upper(), name.title(), f"the_{name}", f"{name}_2"}
    names |= styles("user", "pin") | styles("pin", "code") | styles("card", "pin", "number") | styles("db", "pass")
    assert not {name for name in names if not is_secret(name, ())}


def test_names_that_only_look_like_those_of_secrets_are_shown() -> None:
    glued = [name.replace("_", "") for name in INNOCENT if not name.startswith(("has_", "is_")) and name[-3:] != "_at"]
    names = {*INNOCENT, *glued, *map(str.upper, INNOCENT), *map(str.title, INNOCENT), *(f"{one}2" for one in INNOCENT)}
    assert not {name for name in names if is_secret(name, ())}


def test_what_stands_under_the_name_of_a_secret_is_hidden_as_a_whole() -> None:
    given = {
        "apitoken": ["x"],
        "a": [{"dbpassword": {"old": "y"}, "pincode": 4711, "clientsecret": None, "pinned": True}],
    }
    hidden = {"dbpassword": MASKED, "pincode": MASKED, "clientsecret": None, "pinned": True}
    assert mask(given) == {"apitoken": MASKED, "a": [hidden]}
