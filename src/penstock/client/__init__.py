"""The client: calls the functions of an app over HTTP. Loads neither the server nor pydantic."""

from penstock.client.answers import FunctionError, ServerError, ServerUnreachable
from penstock.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "FunctionError", "ServerError", "ServerUnreachable"]
