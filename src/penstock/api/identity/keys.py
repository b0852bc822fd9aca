"""The public keys of one provider of identities, and what it says of itself: fetched when needed, and kept.

`OwnKeys` are the ones of the program, read from its own database.

Owns when they are fetched. A stale set is served while the next one is fetched, and for a day if the provider is away.
For an unknown key the provider is asked again, but no more often than every 30 seconds, however many tokens come.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from penstock.calls.run.signing import ALGORITHM, Signing
from penstock.calls.run.threads import Threads
from penstock.clock import Clock, SystemClock
from penstock.errors import ProviderUnavailable
from penstock.identity.providers import OIDC, CustomJWT, OwnJWT, WithKeys, is_safe, issuer_url, key_set_in
from penstock.observe.errortext import error_text
from penstock.observe.logs import event

if TYPE_CHECKING:
    import jwt


_FRESH, _SERVED = 300.0, 86400.0  # seconds
_COOL_DOWN, _AFTER_FAILURE = 30.0, 5.0
_PATIENCE = 5.0  # seconds
_LARGEST = 2**20  # bytes
_STEP = 2**16

Keys = dict[str, "jwt.PyJWK"]


class KeySet:
    """The keys of one provider, by their ids."""

    def __init__(self, provider: WithKeys, threads: Threads, clock: Clock) -> None:
        import jwt  # noqa: F401, PLC0415 - takes a seventh of the time to import an app, and few apps verify tokens

        self.provider = provider
        self._threads = threads
        self._clock = clock
        self._keys: Keys = {}
        self._document: Mapping[str, Any] = {}
        self._fetched_at = self._asked_at = float("-inf")
        self._failed = False
        self._fetching: asyncio.Task[None] | None = None
        if provider.keys_url.startswith("data:"):
            self._keys = _keys_in(key_set_in(provider.keys_url), provider)
            self._fetched_at = float("inf")

    async def find(self, key_id: str) -> jwt.PyJWK | None:
        """The key with an id; None if the provider has none.

        Raises:
            ProviderUnavailable: No key was ever fetched, or not for a day.
        """
        if not self.has(key_id) and self._fetched_at < float("inf"):
            self._begin()
            if self._fetching is not None:
                await asyncio.wait([self._fetching], timeout=_PATIENCE)
            if self._age > _SERVED:
                raise ProviderUnavailable(f"The keys of {self.provider.issuer} cannot be fetched.")
        return self._keys.get(key_id)

    def has(self, key_id: str) -> bool:
        """Whether the provider has a key with this id, as far as is known. Starts to fetch a stale set again."""
        if self._age > _FRESH:
            self._begin()
        return key_id in self._keys and self._age <= _SERVED

    async def endpoint(self, name: str) -> str:
        """An address that an `OIDC` provider has told with its keys, such as ``token_endpoint``.

        Raises:
            ProviderUnavailable: It tells none that is safe, or is away.
        """
        await self.find("")
        url = str(self._document.get(name, ""))
        if not is_safe(url, named_by=self.provider.keys_url):
            raise ProviderUnavailable(
                f"{self.provider.issuer} names {url!r} as its {name}, which is no https:// address."
            )
        return url

    async def close(self) -> None:
        """Fetch no more."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    @property
    def _age(self) -> float:
        return self._clock.monotonic() - self._fetched_at

    def _begin(self) -> None:
        """Begin to fetch the keys, unless somebody did a moment ago."""
        now, pause = self._clock.monotonic(), _AFTER_FAILURE if self._failed else _COOL_DOWN
        if self._fetching is None and now - self._asked_at >= pause:
            self._asked_at = now
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name="penstock-identity-keys")

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(2 * _PATIENCE), self._threads.place(self.provider.issuer) as place:
                self._document, self._keys = await place.run(lambda: _fetch(self.provider))
        except Exception as error:  # noqa: BLE001 - whatever a provider sends, the keys that are known are kept
            self._failed = True
            event("identity.keys_failed", logging.WARNING, issuer=self.provider.issuer, error=error_text(error))
        else:
            self._failed, self._fetched_at = False, self._clock.monotonic()
        finally:
            self._fetching = None


def _fetch(provider: WithKeys) -> tuple[Mapping[str, Any], Keys]:
    url, found = provider.keys_url, {}
    if isinstance(provider, OIDC):
        found = fetch_json(url)
        if issuer_url(str(found.get("issuer", ""))) != issuer_url(provider.domain):
            raise ValueError(f"{url} is of the issuer {found.get('issuer')!r}")
        jwks = str(found.get("jwks_uri", ""))
        if not is_safe(jwks, named_by=url):
            raise ValueError(f"{url} names keys at {jwks!r}, which is no https:// address")
        url = jwks
    keys = _keys_in(fetch_json(url), provider)
    if not keys:
        raise ValueError(f"{provider.issuer} has no key for {', '.join(provider.algorithms)}")
    return found, keys


def _keys_in(found: Any, provider: WithKeys) -> Keys:
    """The keys of a set with which tokens may be signed. Keys that PyJWT cannot read are left out."""
    import jwt  # noqa: PLC0415 - see `KeySet`

    keys: Keys = {}
    for one in found["keys"]:
        try:
            key = jwt.PyJWK(one)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue
        if key.key_id and key.public_key_use in {None, "sig"} and key.algorithm_name in provider.algorithms:
            keys[key.key_id] = key
    return keys


def fetch_json(url: str, form: bytes | None = None, authorization: str = "") -> Any:
    """Ask a provider, at an address that `is_safe`; with a form, send it. Raises `OSError` or `ValueError`."""
    headers = {"accept": "application/json"} | ({"authorization": authorization} if authorization else {})
    request = Request(url, form, headers)  # noqa: S310 - `is_safe` has seen it
    proxies = [] if url.startswith("https:") else [ProxyHandler({})]  # this machine is reached without one
    try:
        with build_opener(_NoRedirects, *proxies).open(request, timeout=_PATIENCE) as answer:
            return json.loads(_read(answer, url.partition("?")[0]))
    except HTTPError as error:
        error.close()
        raise


def _read(answer: Any, url: str) -> bytes:
    clock = SystemClock()
    until, body = clock.monotonic() + _PATIENCE, b""
    while step := answer.read1(_STEP):
        body += step
        if len(body) > _LARGEST:
            raise ValueError(f"{url} has more than {_LARGEST} bytes")
        if clock.monotonic() > until:
            raise TimeoutError(f"{url} took longer than {_PATIENCE:g} seconds")
    return body


class _NoRedirects(HTTPRedirectHandler):
    """A provider that could send us elsewhere could have us call addresses inside of our network."""

    def redirect_request(self, *_: Any) -> None:
        return None


_NONE_YET = "data:," + json.dumps({"keys": []})


class OwnKeys:
    """The keys of the program; stands where the `KeySet` of another provider does."""

    def __init__(self, own: OwnJWT, signing: Signing) -> None:
        self.provider = CustomJWT(signing.issuer, _NONE_YET, ALGORITHM, own.application_id)
        self._signing = signing

    async def find(self, key_id: str) -> jwt.PyJWK | None:
        """The key with an id; None if the program has none, or it is too old."""
        import jwt  # noqa: PLC0415 - see `KeySet`

        for again in (False, True):
            for key in await self._signing.read(again=again):
                if key.id == key_id:
                    return jwt.PyJWK(dict(key.public))
        return None

    def has(self, key_id: str) -> bool:
        """Whether the program has a key with this id, as far as is known without a look."""
        return self._signing.has(key_id)

    async def close(self) -> None:
        """Nothing is under way."""
